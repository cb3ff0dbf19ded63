-- Makes decisions (GCRA), one after the other, each of which charges the buckets of one key or none of them.
-- A decision that fails, as when a bucket is no bucket, fails alone.
--
-- KEYS  the buckets of decision 1, of decision 2, ...
-- ARGV  the number of plans; for each plan the number of its charges, and for each charge its cost and its capacity
--       in ns; then, if there are several plans, the number of each decision's plan
--
-- Returns for each decision {allowed (1 or 0), µs of debt 1, ns of debt 1, µs of debt 2, ...}: the debts as they
-- are afterwards; or, in short, the ns of an only debt, or -1 less those if the charge was denied; or {error}.
--
-- A bucket is the server time at which its debt is gone, in ns since 1970. Lua counts integers exactly up to 2^53,
-- which is 285 years in µs, and 104 days in ns: the capacities of most plans are less, and so are their debts.

-- It declares no flags, for the reason in begin_operation.lua: at full memory it still returns
-- debts and denials.

--#include integers

local try, tonumber, format, sub = redis.pcall, tonumber, string.format, string.sub

local TIME, EXACT = INT .. '%03d', 2 ^ 53

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

-- Returns the debt of a bucket in ns. One that is damaged has none. A clock that stepped back must not lock a key
-- out: the debt is never more than the capacity.
local function debtOf(value, cap)
  local gone, ns = tonumber(sub(value, 1, -4)), tonumber(sub(value, -3)) -- arithmetic may read 012 as octal
  local debt = gone and ns and (gone - now) * 1000 + ns or 0
  if debt > cap then
    return cap
  end
  return debt > 0 and debt or 0
end

-- Returns the value of a bucket with a debt of some µs and ns, and after how many ms it is full.
local function bucket(us, ns)
  return format(TIME, now + us, ns), format(INT, (us - us % 1000) / 1000 + 1)
end

-- Makes the decision that most are: one charge, with an exact capacity. Returns nothing on an error: decideSafely
-- finds it.
local function decideOne(key, cost, cap)
  local value, debt = try('GET', key), 0
  if value then
    if value.err then
      return nil
    end
    debt = debtOf(value, cap)
  end
  local sum = debt + cost
  if sum > cap then
    return -1 - debt
  end
  if cost > 0 then
    local ns = sum % 1000
    local text, ms = bucket((sum - ns) / 1000, ns)
    if try('SET', key, text, 'PX', ms).err then
      return nil
    end
  end
  return sum
end

-- A lone caller does not wait until all that others need is set up.
if not KEYS[2] and ARGV[2] == '1' then
  local cap = tonumber(ARGV[4])
  local reply = cap < EXACT and decideOne(KEYS[1], tonumber(ARGV[3]), cap)
  if reply then
    return {reply}
  end
end

-- Returns the µs and the ns of a number of ns.
local function split(text)
  return tonumber(sub(text, 1, -4)) or 0, tonumber(sub(text, -3))
end

-- Returns a debt after a charge, each in µs and ns, and whether that is within the capacity.
local function charge(debt, ns, c)
  debt, ns = debt + c.us, ns + c.ns
  if ns > 999 then
    debt, ns = debt + 1, ns - 1000
  end
  return debt, ns, debt < c.cap_us or debt == c.cap_us and ns <= c.cap_ns
end

-- Charges KEYS[first] and those that follow by a plan, or none of them. Nothing is written before all has been
-- read.
local function decide(first, plan)
  local reply = {1}
  for i, c in ipairs(plan) do
    local debt, ns = split(redis.call('GET', KEYS[first + i - 1]) or '0')
    debt = debt - now
    if not (debt >= 0 and ns and ns >= 0 and ns < 1000) then
      debt, ns = 0, 0
    elseif debt > c.cap_us or debt == c.cap_us and ns > c.cap_ns then
      debt, ns = c.cap_us, c.cap_ns -- see debtOf
    end
    reply[2 * i], reply[2 * i + 1] = debt, ns
    local _, _, allowed = charge(debt, ns, c)
    if not allowed then
      reply[1] = 0
    end
  end
  if reply[1] == 0 then
    return reply
  end
  for i, c in ipairs(plan) do
    if c.cost > 0 then
      local debt, ns = charge(reply[2 * i], reply[2 * i + 1], c)
      local text, ms = bucket(debt, ns)
      redis.call('SET', KEYS[first + i - 1], text, 'PX', ms)
      reply[2 * i], reply[2 * i + 1] = debt, ns
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

local function decideSafely(first, plan)
  local ok, reply = pcall(decide, first, plan)
  return ok and reply or failed(reply)
end

local plans, at, allQuick = {}, 2, true -- quick: one charge, with an exact capacity
for p = 1, tonumber(ARGV[1]) do
  local plan = {}
  for i = 1, tonumber(ARGV[at]) do
    local cost, cap = ARGV[at + 2 * i - 1], ARGV[at + 2 * i]
    local c = {cost = tonumber(cost), cap = tonumber(cap)}
    c.us, c.ns = split(cost)
    c.cap_us, c.cap_ns = split(cap)
    plan[i] = c
  end
  plans[p] = plan
  at = at + 1 + 2 * #plan
  plan.quick = #plan == 1 and plan[1].cap < EXACT and plan[1]
  allQuick = allQuick and plan.quick
end

-- Makes decisions that are quick. Every bucket is read with the others, in one call, and written once, after the
-- last decision about it.
local function decideAll(values)
  local keys, alike, last, replies = KEYS, not plans[2], {}, {} -- last: the last decision that charges a bucket
  local plan = plans[1]
  local cost, cap = plan.quick.cost, plan.quick.cap
  for i = 1, #keys do
    local key, value, debt = keys[i], values[i], 0
    if not alike then
      plan = plans[tonumber(ARGV[at + i - 1])]
      cost, cap = plan.quick.cost, plan.quick.cap
    end
    local earlier = last[key]
    if earlier then
      debt = replies[earlier]
      if debt > cap then
        debt = cap -- of a larger plan
      end
    elseif value then
      debt = debtOf(value, cap)
    end
    local sum = debt + cost
    if sum > cap then
      replies[i] = -1 - debt
    elseif cost > 0 then
      replies[i], last[key] = sum, i
    elseif value or earlier then
      replies[i] = sum
    else -- perhaps it is no bucket
      replies[i] = decideSafely(i, plan)
    end
  end
  for i = 1, #keys do
    local key = keys[i]
    if last[key] == i then
      local ns, done = replies[i] % 1000, nil
      local text, ms = bucket((replies[i] - ns) / 1000, ns)
      if values[i] then
        done = try('SET', key, text, 'PX', ms)
      else
        done = try('SET', key, text, 'PX', ms, 'NX') or try('GET', key) -- which says that it is no bucket
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
  local c = plan.quick
  n = n + 1
  replies[n] = c and decideOne(KEYS[first], c.cost, c.cap) or decideSafely(first, plan)
  first = first + #plan
end
return replies
