-- Admits a token or refuses it, as fence.Mark.Admit does, and writes a value if it was admitted.
--
-- KEYS[1]  the mark: the largest number of an exclusive token that was seen, in decimal
-- KEYS[2]  the value; absent if there is nothing to write
-- ARGV     the token's number in decimal, "1" if it is shared, TTL of the mark in ms; with KEYS[2]
--          also the value and its TTL in ms, or "0" for no expiry
--
-- Returns an empty string if the token passed, or else the mark that it is below.
--
-- Numbers are compared as text: a Lua number is exact only to 2^53.

local number, life = ARGV[1], ARGV[3]
local mark = redis.call('GET', KEYS[1]) or '0'
if not string.find(mark, '^%d+$') or #mark > 19 then
  return redis.error_reply('ERR the mark is not a number')
end

local function below(a, b)
  return #a < #b or (#a == #b and a < b)
end

if below(number, mark) then
  redis.call('PEXPIRE', KEYS[1], life) -- old holders are about: forget nothing yet
  return mark
end

-- The first write is the one that a full server refuses, and then neither has happened.
if KEYS[2] then
  if ARGV[5] == '0' then
    redis.call('SET', KEYS[2], ARGV[4])
  else
    redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
  end
end
if ARGV[2] ~= '1' and below(mark, number) then
  redis.call('SET', KEYS[1], number, 'PX', life)
else
  redis.call('PEXPIRE', KEYS[1], life)
end
return ''
