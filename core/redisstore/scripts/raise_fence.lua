#!lua
-- Makes the next fence of a lock larger than a number.
--
-- KEYS[1]  the largest fence so far
-- ARGV     the number
--
-- Returns 1.

local stored, least = redis.call('GET', KEYS[1]), tonumber(ARGV[1])
if stored and string.find(stored, '^%d+$') then
  least = math.max(least, tonumber(stored))
end
local t = redis.call('TIME')
local lead = math.max(least - (t[1] * 1000000 + t[2]), 0)
redis.call('SET', KEYS[1], string.format('%.0f', least), 'PX', string.format('%.0f', math.ceil(lead / 1000) + 3600000))
return 1
