#!lua
-- Charges several buckets of one key, or none of them (GCRA).
--
-- KEYS[i]  the bucket of charge i: "T" or "T:F/D", the server time at which its debt is gone, in
--          µs, with a fraction of F/D µs
-- ARGV     for each charge five integers: the cost in whole µs and its fraction, the capacity in
--          whole µs and its fraction, and the denominator of both fractions
--
-- Returns {allowed (1 or 0), µs of debt 1, fraction of debt 1, µs of debt 2, ...}: the debts as
-- they are afterwards.

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local charges, allowed = {}, 1

for i, key in ipairs(KEYS) do
  local a = 5 * (i - 1)
  local c = {
    cost = tonumber(ARGV[a + 1]), cost_frac = tonumber(ARGV[a + 2]),
    cap = tonumber(ARGV[a + 3]), cap_frac = tonumber(ARGV[a + 4]),
    den = tonumber(ARGV[a + 5]), debt = 0, frac = 0,
  }
  charges[i] = c

  local empties, frac, den = string.match(redis.call('GET', key) or '', '^(%d+):?(%d*)/?(%d*)$')
  if empties and tonumber(empties) >= now then
    c.debt = tonumber(empties) - now
    c.frac = tonumber(frac) or 0
    if c.frac > 0 and (tonumber(den) ~= c.den or c.frac >= c.den) then
      -- written under another plan, or damaged: round up
      c.debt, c.frac = c.debt + 1, 0
    end
    if c.debt > c.cap or (c.debt == c.cap and c.frac > c.cap_frac) then
      -- a clock that stepped back must not lock a key out
      c.debt, c.frac = c.cap, c.cap_frac
    end
  end

  c.due, c.due_frac = c.debt + c.cost, c.frac + c.cost_frac
  if c.due_frac >= c.den then
    c.due, c.due_frac = c.due + 1, c.due_frac - c.den
  end
  if c.due > c.cap or (c.due == c.cap and c.due_frac > c.cap_frac) then
    allowed = 0
  end
end

local reply = {allowed}
for i, c in ipairs(charges) do
  if allowed == 1 then
    c.debt, c.frac = c.due, c.due_frac
    if c.cost > 0 or c.cost_frac > 0 then
      local value = string.format('%.0f', now + c.debt)
      if c.frac > 0 then
        value = value .. string.format(':%.0f/%.0f', c.frac, c.den)
      end
      redis.call('SET', KEYS[i], value, 'PX', string.format('%.0f', math.floor(c.debt / 1000) + 1))
    end
  end
  reply[2 * i], reply[2 * i + 1] = c.debt, c.frac
end
return reply
