-- Registers an inbox for a push when a latch opens, unless it is open.
--
-- KEYS     as in count_down_latch.lua
-- ARGV     count of the latch, inbox, TTL of the registration in ms
--
-- Returns the number of participants: the latch is open if the count is reached.
--
-- It declares no flags, for the reason in begin_operation.lua.

local n = redis.call('SCARD', KEYS[1])
local left = redis.call('PTTL', KEYS[2])
if n < tonumber(ARGV[1]) then
  local t = redis.call('TIME')
  local life = tonumber(ARGV[3])
  redis.call('ZADD', KEYS[2], string.format('%.0f', t[1] * 1000000 + t[2] + life * 1000), ARGV[1] .. ' ' .. ARGV[2])
  if left < life then
    redis.call('PEXPIRE', KEYS[2], string.format('%.0f', life))
  end
end
return n
