-- Makes decisions (GCRA), one after the other, each of which charges the buckets of one key or none of them.
-- A decision that fails, as when a bucket is no bucket, fails alone.
--
-- KEYS  the buckets of decision 1, of decision 2, ...
-- ARGV  the number of plans; for each plan the number of its charges, and for each charge five integers: the
--       cost in whole µs and its fraction, the capacity in whole µs and its fraction, and the denominator
--       of both fractions; then, if there are several plans, the number of each decision's plan
--
-- Returns for each decision {allowed (1 or 0), µs of debt 1, fraction of debt 1, µs of debt 2, ...}: the debts
-- as they are afterwards; or in short, for one charge without a fraction, the µs of debt, or -1 less them
-- if it was denied; or {error}.
--
-- A bucket is "T" or "T:F/D": the server time at which its debt is gone, in µs, with a fraction of F/D
-- µs. A plan is a list of charges: each a cost and a capacity, in whole µs and a fraction, and the
-- denominator of both fractions.

-- It declares no flags, for the reason that begin_operation.lua gives: at full memory it tells debts and denies.

local try, tonumber, floor, format = redis.pcall, tonumber, math.floor, string.format

-- Makes the decision that most are: one charge, no fractions. Returns nothing if the bucket has one, or on an error:
-- decideSafely finds both.
local function decideQuickly(key, cost, cap, now)
  local value, debt = try('GET', key), 0
  if value then
    local empties = tonumber(value)
    if not empties then
      return nil
    end
    if empties > now then
      debt = empties - now
      if debt > cap then
        debt = cap -- see debtOf
      end
    end
  end
  local sum = debt + cost
  if sum > cap then
    return -1 - debt
  end
  if cost > 0 then
    local ok = try('SET', key, format(INT, now + sum), 'PX', format(INT, floor(sum / 1000) + 1))
    if ok.err then
      return nil
    end
  end
  return sum
end

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

-- Whoever asks alone does not wait until all that others need is set up.
if not KEYS[2] and ARGV[2] == '1' and ARGV[7] == '1' then
  local reply = decideQuickly(KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[5]), now)
  if reply then
    return {reply}
  end
end

-- Reads the plan of n charges that begins at ARGV[at].
local function readPlan(at, n)
  local plan = {}
  for i = 1, n do
    plan[i] = {
      cost = tonumber(ARGV[at]), cost_frac = tonumber(ARGV[at + 1]),
      cap = tonumber(ARGV[at + 2]), cap_frac = tonumber(ARGV[at + 3]),
      den = tonumber(ARGV[at + 4]),
    }
    at = at + 5
  end
  return plan
end

-- The debt of a bucket, as a charge counts it.
local function debtOf(key, c, now)
  local value = redis.call('GET', key)
  if not value then
    return 0, 0
  end
  local empties, frac, den = string.match(value, '^(%d+):?(%d*)/?(%d*)$')
  empties = tonumber(empties)
  if not empties or empties < now then
    return 0, 0
  end
  local debt = empties - now
  frac = tonumber(frac) or 0
  if frac > 0 and (tonumber(den) ~= c.den or frac >= c.den) then
    -- written under another plan, or damaged: round up
    debt, frac = debt + 1, 0
  end
  if debt > c.cap or (debt == c.cap and frac > c.cap_frac) then
    -- a clock that stepped back must not lock a key out
    return c.cap, c.cap_frac
  end
  return debt, frac
end

-- A debt with the cost of a charge.
local function charged(debt, frac, c)
  debt, frac = debt + c.cost, frac + c.cost_frac
  if frac >= c.den then
    return debt + 1, frac - c.den
  end
  return debt, frac
end

-- Charges KEYS[first] and those that follow by a plan, or none of them. Returns {allowed (1 or 0), µs of
-- debt 1, fraction of debt 1, µs of debt 2, ...}: the debts as they are afterwards. Nothing is written
-- before all has been read.
local function decide(first, plan, now)
  local reply = {1}
  for i, c in ipairs(plan) do
    local debt, frac = debtOf(KEYS[first + i - 1], c, now)
    reply[2 * i], reply[2 * i + 1] = debt, frac
    debt, frac = charged(debt, frac, c)
    if debt > c.cap or (debt == c.cap and frac > c.cap_frac) then
      reply[1] = 0
    end
  end
  if reply[1] == 0 then
    return reply
  end
  for i, c in ipairs(plan) do
    if c.cost > 0 or c.cost_frac > 0 then
      local debt, frac = charged(reply[2 * i], reply[2 * i + 1], c)
      local value = format(INT, now + debt)
      if frac > 0 then
        value = value .. ':' .. format(INT, frac) .. '/' .. format(INT, c.den)
      end
      redis.call('SET', KEYS[first + i - 1], value, 'PX', format(INT, floor(debt / 1000) + 1))
      reply[2 * i], reply[2 * i + 1] = debt, frac
    end
  end
  return reply
end

-- Returns the error of a decision. That of a server that refuses to write for a reason other than its memory is one
-- of all decisions: nothing has been charged.
local function failed(err)
  local text = type(err) == 'table' and err.err or tostring(err)
  if string.find(text, 'READONLY ', 1, true) or string.find(text, 'NOREPLICAS ', 1, true) or string.find(text, 'MISCONF ', 1, true) then
    error(string.find(text, '^%u') and err or text, 0) -- before version 7 a table is no error
  end
  return {text}
end

local function decideSafely(first, plan, now)
  local ok, reply = pcall(decide, first, plan, now)
  if not ok then
    return failed(reply)
  end
  if #reply == 3 and reply[3] == 0 then
    return reply[1] == 1 and reply[2] or -1 - reply[2]
  end
  return reply
end

local plans, at, allQuick = {}, 2, true
for p = 1, tonumber(ARGV[1]) do
  local n = tonumber(ARGV[at])
  local plan = readPlan(at + 1, n)
  plan.quick = n == 1 and plan[1].den == 1 and plan[1]
  allQuick = allQuick and plan.quick
  plans[p] = plan
  at = at + 1 + 5 * n
end

-- Makes decisions with one charge and no fractions. Every bucket is read with the others, in one call, and
-- written once, after the last decision about it.
local function decideAll(values)
  local keys, alike, empties, last, replies = KEYS, not plans[2], {}, {}, {}
  -- empties: of a bucket that has been charged, when it is; last: by which decision
  for i = 1, #keys do
    local key, plan = keys[i], alike and plans[1] or plans[tonumber(ARGV[at + i - 1])]
    local c = plan.quick
    local free = empties[key] or tonumber(values[i] or c.cost > 0 and '0')
    if not free then -- a fraction, or perhaps what is no bucket
      replies[i] = decideSafely(i, plan, now)
    else
      local debt = free > now and free - now or 0
      if debt > c.cap then
        debt = c.cap -- see debtOf
      end
      local sum = debt + c.cost
      if sum > c.cap then
        replies[i] = -1 - debt
      else
        replies[i] = sum
        if c.cost > 0 then
          empties[key], last[key] = now + sum, i
        end
      end
    end
  end
  for i = 1, #keys do
    local key = keys[i]
    if last[key] == i then
      local value, ms, done = format(INT, now + replies[i]), format(INT, floor(replies[i] / 1000) + 1), nil
      if values[i] then
        done = try('SET', key, value, 'PX', ms)
      else
        done = try('SET', key, value, 'PX', ms, 'NX') or try('GET', key) -- which says that it is no bucket
      end
      if type(done) ~= 'table' or done.err then
        for n, other in ipairs(keys) do
          if other == key then
            replies[n] = type(done) == 'table' and failed(done) or {'ERR the bucket has appeared'}
          end
        end
      end
    end
  end
  return replies
end

local values = allQuick and KEYS[16] and try('MGET', unpack(KEYS)) -- fewer are read as fast one by one
if values and not values.err then -- an ACL may forbid it
  return decideAll(values)
end

local replies, n, first = {}, 0, 1
while KEYS[first] do
  local plan = plans[1]
  if plans[2] then
    plan, at = plans[tonumber(ARGV[at])], at + 1
  end
  local quick = plan.quick
  n = n + 1
  replies[n] = quick and decideQuickly(KEYS[first], quick.cost, quick.cap, now) or decideSafely(first, plan, now)
  first = first + #plan
end
return replies
