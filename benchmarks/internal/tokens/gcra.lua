-- The least that a decision about one key takes: GCRA in whole µs.
--
-- KEYS[1]  the bucket: the server's time at which its debt is gone
-- ARGV     the cost and the capacity, in µs
--
-- Returns the debt afterwards, or -1 less it if the cost is denied.

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local empties = tonumber(redis.call('GET', KEYS[1]) or now)
local debt = math.max(empties - now, 0)
if debt + ARGV[1] > tonumber(ARGV[2]) then
  return -1 - debt
end
debt = debt + ARGV[1]
redis.call('SET', KEYS[1], string.format('%.0f', now + debt), 'PX', math.floor(debt / 1000) + 1)
return debt
