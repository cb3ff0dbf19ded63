#!lua
-- Charges several buckets of one key, or none of them.
--
-- KEYS[i]  the bucket of charge i
-- ARGV     for each charge five integers: the cost in whole µs and its fraction, the capacity in
--          whole µs and its fraction, and the denominator of both fractions
--
-- Returns {allowed (1 or 0), µs of debt 1, fraction of debt 1, µs of debt 2, ...}: the debts as
-- they are afterwards.

local t = redis.call('TIME')
return decide(1, readPlan(1, #KEYS), t[1] * 1000000 + t[2])
