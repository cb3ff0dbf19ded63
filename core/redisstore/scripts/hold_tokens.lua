-- Holds buckets: until the hold ends, nothing is charged to them except by settlements. A bucket
-- that is held for longer stays so, and debts are not changed, so the script may run twice.
--
-- KEYS  the buckets
-- ARGV  for how long, in µs; for each bucket the interval that it gets if it has none, in which a
--       token comes back, in ns, or @0 for a bucket of a calendar

--#include integers bucket_constants

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

--#include bucket

local span, states = tonumber(ARGV[1]), {}
for i, key in ipairs(KEYS) do -- all, before any is written: it may be no bucket
  states[i] = read(key)
end
for i, key in ipairs(KEYS) do
  local s = states[i]
  if s.held < span then
    s.held, s.hold = span, string.format(HELD, now + span, span)
    write(key, s.us, s.ns, s.interval or ARGV[1 + i], s.ends, s)
  end
end
return 1
