-- The least that decisions about many keys take in one call: see gcra.lua.
--
-- KEYS  the buckets
-- ARGV  the cost and the capacity, in µs
--
-- Returns for each bucket the debt afterwards, or -1 less it if the cost is denied.

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local cost, capacity = tonumber(ARGV[1]), tonumber(ARGV[2])
local replies = {}
for i, key in ipairs(KEYS) do
  local debt = math.max(tonumber(redis.call('GET', key) or now) - now, 0)
  if debt + cost > capacity then
    replies[i] = -1 - debt
  else
    debt = debt + cost
    redis.call('SET', key, string.format('%.0f', now + debt), 'PX', math.floor(debt / 1000) + 1)
    replies[i] = debt
  end
end
return replies
