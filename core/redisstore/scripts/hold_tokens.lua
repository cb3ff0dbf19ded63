-- Holds buckets: nothing is charged to them until the hold ends, but settlements. Buckets that are held for longer
-- stay so, and debts are not changed, so that it may run twice.
--
-- KEYS  the buckets
-- ARGV  for how long, in µs; for each bucket, for one without debt, the interval in which a token comes back in ns, or @0
--       for one of a calendar

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
