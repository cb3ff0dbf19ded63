-- Has an inbox be told when a latch is open, unless it is.
--
-- KEYS     as in count_down_latch.lua
-- ARGV     how many participants open it, inbox, for how long it wants to be told in ms
--
-- Returns how many are in the set.
--
-- It declares no flags, for the reason that begin_operation.lua gives.

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
