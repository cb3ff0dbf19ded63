#!lua
-- Makes several decisions, one after the other, each of which charges the buckets of one key or none of
-- them. A decision that fails, as when a bucket is no bucket, fails alone.
--
-- KEYS  the buckets of decision 1, of decision 2, ...
-- ARGV  the number of plans; for each plan the number of its charges, and five integers for each (see
--       take_tokens.lua); then, if there are several plans, the number of each decision's plan
--
-- Returns for each decision what take_tokens.lua returns; or in short, for one charge without a fraction,
-- the µs of debt, or -1 less them if it was denied; or {error}.

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

local plans, at = {}, 2
for p = 1, tonumber(ARGV[1]) do
  local n = tonumber(ARGV[at])
  plans[p] = readPlan(at + 1, n)
  at = at + 1 + 5 * n
end

local replies, first = {}, 1
while first <= #KEYS do
  local plan = plans[1]
  if plans[2] then
    plan, at = plans[tonumber(ARGV[at])], at + 1
  end
  local ok, reply = pcall(decide, first, plan, now)
  if not ok then
    reply = {type(reply) == 'table' and reply.err or tostring(reply)}
  elseif #reply == 3 and reply[3] == 0 then
    reply = reply[1] == 1 and reply[2] or -1 - reply[2]
  end
  replies[#replies + 1] = reply
  first = first + #plan
end
return replies
