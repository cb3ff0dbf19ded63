-- Makes decisions (GCRA) and settlements, one after the other. Each charges all of its buckets, or
-- none. One that fails, for instance because a key has another type, fails alone.
--
-- KEYS  the buckets of decision 1, of decision 2, ...; a bucket may occur more than once
-- ARGV  the number of plans; the plans; then, if there are several, the number of each decision's
--       plan
--
-- A plan is
--   - how often its costs are charged at most, or 0 if it is a settlement;
--   - the number of its charges;
--   - for each charge, all in ns, its cost, its capacity, its overdraft, and the interval in which
--     a token comes back; and 1 if a bucket of another interval counts as full, or 0; or, for a
--     bucket of a calendar, the begin, the end and the next end of a period, in µs.
--
-- Returns for each decision one of
--   - {how often it was charged, for how many µs the buckets are held, µs of debt 1, ns of debt 1,
--     µs of debt 2, ...}, with the debts afterwards. If a bucket is of a calendar, for each one the
--     µs until its period ends follow, or 0. A settlement was charged 0 times if a debt would have
--     become too large.
--   - in short, if no bucket is held or of a calendar: the ns of an only debt, or {ns of debt 1, ns
--     of debt 2, ...}. If it was charged 0 times, the first one is -1 less the debt.
--   - {error}.
--
-- A list of one number may be the number itself.
--
-- lib/bucket_constants.lua describes the value of a bucket. Lua counts integers exactly up to 2^53,
-- which is 285 years in µs, and 104 days in ns: the capacities of most plans are less, and so are
-- their debts.

-- It declares no flags, for the reason in begin_operation.lua: at full memory it still returns
-- debts and denials.

--#include integers bucket_constants

local try, tonumber, format, sub = redis.pcall, tonumber, string.format, string.sub

local EXACT = 2 ^ 53

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

-- This is decideOne, in line, before the setup that other cases need: one decision or settlement of
-- a single charge, with an exact limit, to a bucket of the same interval that is not held. After an
-- error the code below decides.
if ARGV[1] == '1' and (ARGV[2] == '1' or ARGV[2] == '0') and ARGV[3] == '1' and #ARGV[8] == 1 and not KEYS[2] then
  local cost, cap, settles, interval = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[2] == '0', ARGV[7]
  local limit, debt = cap + tonumber(ARGV[6]), 0
  local value = limit < EXACT and cost ~= 0 and try('GET', KEYS[1])
  if value and not value.err and sub(value, 20) == interval then
    local gone, ns = tonumber(sub(value, 1, 16)), tonumber(sub(value, 17, 19))
    debt = gone and ns and (gone - now) * 1000 + ns or 0
    debt = settles and debt > limit and limit or debt > 0 and debt or 0
    value = debt >= EXACT
  end
  local sum = debt + cost
  local short = sum > limit and settles and -1 - limit or sum
  if value or limit >= EXACT or sum <= 0 then -- it is none of these
  elseif sum > cap and not settles then
    return -1 - debt
  else
    sum = sum > limit and limit or sum
    local ns = sum % 1000
    local us = (sum - ns) / 1000
    if not try('SET', KEYS[1], format(TIME, now + us, ns, interval, ''), 'PX', expiry(us)).err then
      return short
    end
  end
end

-- Returns the debt of a bucket that is not held, in ns, or nothing if it may not be exact. A
-- damaged bucket has no debt. The debt exceeds the limit after a charge by a larger plan, and after
-- the clock has stepped back.
local function debtOf(value)
  local gone, ns = tonumber(sub(value, 1, 16)), tonumber(sub(value, 17, 19)) -- arithmetic may read 012 as octal
  local debt = gone and ns and (gone - now) * 1000 + ns or 0
  return debt < EXACT and (debt > 0 and debt or 0) or nil
end

-- Writes a bucket with a debt in ns. Returns its error, if it fails.
local function save(key, debt, interval)
  local done
  if debt == 0 then
    done = try('DEL', key)
  else
    local ns = debt % 1000
    local us = (debt - ns) / 1000
    done = try('SET', key, format(TIME, now + us, ns, interval, ''), 'PX', expiry(us))
  end
  return type(done) == 'table' and done.err
end

-- Returns the short reply of a charge, and the debt to write, if any. The limit includes the
-- overdraft. The capacity is infinite for a settlement, which lowers the debt to the limit.
local function add(debt, cost, cap, limit)
  local sum = (debt > limit and cap > limit and limit or debt) + cost
  if cost == 0 then
    return debt
  elseif sum > cap then
    return -1 - debt
  elseif sum > limit then
    return -1 - limit, limit
  elseif sum < 0 then
    return 0, 0
  end
  return sum, sum
end

-- Makes the most frequent decision: one charge, with an exact limit, to a bucket of the same
-- interval that is not held. Returns nothing for others, and on an error, which decideSafely finds.
local function decideOne(key, cost, cap, limit, interval)
  local value, debt = try('GET', key), 0
  if value then
    if value.err or sub(value, 20) ~= interval then
      return nil
    end
    debt = debtOf(value)
    if not debt then
      return nil
    end
  end
  local reply, after = add(debt, cost, cap, limit)
  if after and save(key, after, interval) then
    return nil
  end
  return reply
end

-- Makes a decision of several charges, each as in decideOne and to a bucket of its own. Returns
-- nothing for others. The arguments begin at a position.
local function decideSeveral(first, at, n, settles)
  local debts, after, allowed = {}, {}, true
  for i = 1, n do
    local key, a = KEYS[first + i - 1], at + 5 * i - 5
    for j = first, first + i - 2 do
      if KEYS[j] == key then
        return nil
      end
    end
    local cap = tonumber(ARGV[a + 1])
    local limit = cap + tonumber(ARGV[a + 2])
    local exact = limit < EXACT and #ARGV[a + 4] == 1
    local value, debt = exact and try('GET', key), 0
    if not exact or value and (value.err or sub(value, 20) ~= ARGV[a + 3]) then
      return nil
    elseif value then
      debt = debtOf(value)
      if not debt then
        return nil
      end
    end
    local reply, charged = add(debt, tonumber(ARGV[a]), settles and math.huge or cap, limit)
    allowed = allowed and reply >= 0
    debts[i], after[i] = debt, charged or false
  end
  local written = false
  for i = 1, n do
    if after[i] and (allowed or settles) then
      debts[i] = after[i]
      local err = save(KEYS[first + i - 1], after[i], ARGV[at + 5 * i - 2])
      if err then
        return written and {err} or nil
      end
      written = true
    end
  end
  if not allowed then
    debts[1] = -1 - debts[1]
  end
  return debts
end

-- Ordinary decisions of one plan are made before the setup that others need.
local times, replies = ARGV[2], {}
if ARGV[1] == '1' and (times == '1' or times == '0') then
  local charges = tonumber(ARGV[3])
  if charges == #KEYS and charges > 1 then
    replies[1] = decideSeveral(1, 4, charges, times == '0')
  elseif charges == 1 and not KEYS[16] then -- decideAll makes more
    local cost, cap = tonumber(ARGV[4]), tonumber(ARGV[5])
    local limit = cap + tonumber(ARGV[6])
    local most = limit < EXACT and #ARGV[8] == 1 and (times == '1' and cap or math.huge)
    for i = 1, most and #KEYS or 0 do
      replies[i] = decideOne(KEYS[i], cost, most, limit, ARGV[7])
      if not replies[i] then
        break
      end
    end
  end
  if #replies * charges == #KEYS then
    return replies
  end
end

--#include bucket

-- Returns the µs and the ns of a number of ns, which both have its sign.
local function split(text)
  if sub(text, 1, 1) == '-' then
    local us, ns = tonumber(sub(text, 2, -4)) or 0, tonumber(sub(text, math.max(-3, 1 - #text)))
    return -us, -ns
  end
  return tonumber(sub(text, 1, -4)) or 0, tonumber(sub(text, -3))
end

-- Returns the sum of two times, each in µs and ns.
local function sum(us, ns, more_us, more_ns)
  us, ns = us + more_us, ns + more_ns
  if ns > 999 then
    return us + 1, ns - 1000
  elseif ns < 0 then
    return us - 1, ns + 1000
  end
  return us, ns
end

local function exceeds(us, ns, most_us, most_ns)
  return us > most_us or us == most_us and ns > most_ns
end

-- Returns a cost times thousands and ones, exactly if the product is a debt. Only costs of less
-- than 1 µs are charged more often than a number can count.
local function multiply(c, thousands, ones)
  if thousands == 0 and ones == 1 then
    return c.us, c.ns
  end
  local ns = c.ns * ones
  return c.us * (thousands * 1000 + ones) + c.ns * thousands + (ns - ns % 1000) / 1000, ns % 1000
end

-- Returns how often a cost can be added to a debt, in thousands and ones.
local function room(c, us, ns)
  us, ns = sum(c.cap_us, c.cap_ns, -us, -ns)
  if us < 0 then
    return 0, 0
  elseif c.us == 0 then
    local rest = us % c.ns
    return (us - rest) / c.ns, math.floor((rest * 1000 + ns) / c.ns)
  end
  local times = math.floor((us * 1000 + ns) / (c.us * 1000 + c.ns)) + 1 -- as exact as numbers are
  while true do
    local ones = times % 1000
    local thousands = (times - ones) / 1000
    local all_us, all_ns = multiply(c, thousands, ones)
    if not exceeds(all_us, all_ns, us, ns) then
      return thousands, ones
    end
    times = times - 1
  end
end

-- Returns the end of a bucket's period, if a charge finds the period in use: see store.Charge.Used.
local function keeps(state, c)
  local ends, p = state.ends, c.period
  return ends and p and state.us + state.ns > 0 and ends - now <= p.both and ends
end

-- Returns the end of the period of a charge's bucket: see store.Period.EndAt.
local function endOf(state, c)
  local p = c.period
  local ends = now < p.begin and p.begin or now < p.ends and p.ends or p.next
  return keeps(state, c) or now - (now - ends) % p.both + p.both
end

-- Returns the debt of a bucket as a charge counts it. A debt of another interval stays as many
-- tokens, rounded up.
local function counted(state, c)
  local us, ns = state.us, state.ns
  if (state.ends or c.period) and not keeps(state, c) then
    return 0, 0
  elseif not c.period and state.interval ~= c.interval and us + ns > 0 then
    if c.fresh then
      return 0, 0
    end
    local debt = math.ceil((us * 1000 + ns) / tonumber(state.interval) * tonumber(c.interval))
    if not (debt < c.cap) then
      return c.cap_us, c.cap_ns
    end
    ns = math.fmod(debt, 1000)
    return math.floor((debt - ns) / 1000 + 0.5), ns
  elseif c.period and exceeds(us, ns, c.limit_us, c.limit_ns) then
    return c.limit_us, c.limit_ns
  end
  return us, ns
end

-- Returns the debts of buckets in these states after charges of a plan's costs, in thousands and
-- ones, and whether the charges are allowed. The charges to a bucket add up.
local function charge(first, plan, states, thousands, ones)
  local after, allowed = {}, true
  for i, c in ipairs(plan) do
    if c.cost ~= 0 then
      local key = KEYS[first + i - 1]
      local before = after[key] or states[key]
      local us, ns = counted(before, c)
      if plan.settles and exceeds(us, ns, c.limit_us, c.limit_ns) then
        us, ns = c.limit_us, c.limit_ns
      end
      us, ns = sum(us, ns, multiply(c, thousands, ones))
      if plan.settles then
        if us < 0 then
          us, ns = 0, 0
        elseif exceeds(us, ns, c.limit_us, c.limit_ns) then
          us, ns, allowed = c.limit_us, c.limit_ns, false
        end
      elseif exceeds(us, ns, c.cap_us, c.cap_ns) then
        return {}, false
      end
      local a = {us = us, ns = ns, interval = c.interval}
      if c.period then
        a.ends = endOf(before, c)
        a.interval = format('@' .. INT, a.ends)
      end
      after[key] = a
    end
  end
  return after, allowed
end

-- Charges KEYS[first] and the keys after it by a plan, or none of them. Nothing is written before
-- all has been read.
local function decide(first, plan)
  local states, held, refused = {}, 0, false
  local thousands, ones = plan.thousands, plan.ones
  for i, c in ipairs(plan) do
    local key = KEYS[first + i - 1]
    local s = states[key] or read(key)
    states[key], held = s, math.max(held, s.held)
    refused = refused or s.held > 0 and c.cost ~= 0 and not plan.settles
    if plan.several and c.cost ~= 0 then
      local t, o = room(c, counted(s, c))
      if exceeds(thousands, ones, t, o) then
        thousands, ones = t, o
      end
    end
  end
  local after, allowed = {}, false
  if not refused and thousands + ones > 0 then
    after, allowed = charge(first, plan, states, thousands, ones)
  end
  local reply = {allowed and (thousands > 0 and format(INT .. '%03d', thousands, ones) or ones) or 0, held}
  for i, c in ipairs(plan) do
    local key = KEYS[first + i - 1]
    local s, a = states[key], after[key]
    if a and not a.written then
      a.written = true
      write(key, a.us, a.ns, a.interval, a.ends, s)
    end
    reply[2 * i + 1], reply[2 * i + 2] = counted(a or s, c)
    if plan.dated then
      reply[2 + 2 * #plan + i] = c.period and endOf(a or s, c) - now or 0
    end
  end
  return reply
end

-- Returns the error of a decision. If the server refuses writes for a reason other than its memory,
-- it raises the error for all decisions: nothing has been charged.
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

local plans, at, allQuick, several = {}, 2, true, false -- quick: decideAll may decide it
for p = 1, tonumber(ARGV[1]) do
  local times, plan = ARGV[at], {}
  for i = 1, tonumber(ARGV[at + 1]) do
    local c, a = {}, at + 5 * i - 3
    c.cost, c.cap, c.interval, c.fresh = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), ARGV[a + 3], ARGV[a + 4] == '1'
    if #ARGV[a + 4] > 1 then
      local begin, ends, next = string.match(ARGV[a + 4], '^(%S+) (%S+) (%S+)$')
      c.period = {begin = tonumber(begin), ends = tonumber(ends), next = tonumber(next)}
      c.period.both = math.max(c.period.next - c.period.begin, 1)
      plan.dated = true
    end
    c.us, c.ns = split(ARGV[a])
    c.cap_us, c.cap_ns = split(ARGV[a + 1])
    c.limit_us, c.limit_ns = sum(c.cap_us, c.cap_ns, split(ARGV[a + 2]))
    c.limit, c.most = c.cap + tonumber(ARGV[a + 2]), times == '0' and math.huge or c.cap
    plan[i] = c
  end
  plan.at, plan.settles, plan.several = at + 2, times == '0', times ~= '0' and times ~= '1'
  plan.thousands, plan.ones = 0, 1
  if plan.several then
    plan.thousands, plan.ones = split(times)
  end
  plan.quick = not plan.several and not plan.dated
  for _, c in ipairs(plan) do
    plan.quick = plan.quick and c.limit < EXACT
  end
  plans[p] = plan
  at = at + 2 + 5 * #plan
  allQuick, several = allQuick and plan.quick, several or #plan > 1
end

-- Makes quick decisions, of buckets with these values. Every bucket is written once, after the last
-- decision about it. Decisions about a bucket of another interval, or a held one, are made one by
-- one.
local function decideAll(values)
  local keys, alike, plan, n, first = KEYS, not plans[2], plans[1], 0, 1
  -- debts are of the buckets that are to be written, intervals theirs if not common.
  local common, debts, intervals = plan[1].interval, {}, {}
  local alone, replies, after = {}, {}, {}

  -- Writes a bucket. An error is the error of all decisions about it.
  local function finish(key, debt)
    local err = save(key, debt, intervals[key] or common)
    if not err then
      return
    end
    local reply, i = failed({err = err}), 1
    for d = 1, n do
      local of = alike and plan or plans[tonumber(ARGV[at + d - 1])]
      for last = i + #of - 1, i, -1 do
        if keys[last] == key then
          replies[d] = reply
        end
      end
      i = i + #of
    end
  end

  -- Returns the debt of a decision's bucket as a charge counts it, or nothing if the decision is to
  -- be made alone.
  local function owed(i, c)
    local key, value = keys[i], values[i]
    local debt = debts[key]
    if debt then
      if (intervals[key] or common) ~= c.interval then
        return nil
      end
      return debt
    elseif alone[key] or value and sub(value, 20) ~= c.interval then
      return nil
    end
    if not value then
      return 0
    end
    return debtOf(value)
  end

  -- Makes a decision of several charges, each to a bucket of its own. Returns nothing for others.
  local function decideTogether()
    local reply, allowed = {}, true
    for i = 1, #plan do
      local c, k = plan[i], first + i - 1
      local debt = owed(k, c)
      for j = first, k - 1 do
        debt = keys[j] ~= keys[k] and debt
      end
      if not debt then
        return nil
      end
      local short, charged = add(debt, c.cost, c.most, c.limit)
      reply[i], after[i], allowed = debt, charged or false, allowed and short >= 0
    end
    if allowed or plan.settles then
      for i = 1, #plan do
        if after[i] then
          local key, interval = keys[first + i - 1], plan[i].interval
          reply[i], debts[key] = after[i], after[i]
          if interval ~= common then
            intervals[key] = interval
          end
        end
      end
    end
    if not allowed then
      reply[1] = -1 - reply[1]
    end
    return reply
  end

  while keys[first] do
    if not alike then
      plan = plans[tonumber(ARGV[at + n])]
    end
    local reply
    if plan[2] then
      reply = decideTogether()
    else
      local c, key, value = plan[1], keys[first], values[first]
      local interval = c.interval
      local quick = value and not debts[key] and not alone[key] and sub(value, 20) == interval
      local debt, after = quick and debtOf(value) or owed(first, c), nil
      if debt then
        reply, after = add(debt, c.cost, c.most, c.limit)
        if after then
          debts[key] = after
          if interval ~= common then
            intervals[key] = interval
          end
        end
      end
    end
    if not reply then
      for i = first, first + #plan - 1 do
        local key = keys[i]
        if debts[key] then
          finish(key, debts[key])
        end
        debts[key], alone[key] = nil, true
      end
      reply = decideSafely(first, plan)
    end
    n = n + 1
    replies[n] = reply
    first = first + #plan
  end
  for key, debt in pairs(debts) do
    finish(key, debt)
  end
  return replies
end

-- Returns the values of all buckets, or nothing if one of them is no bucket, or an ACL forbids it.
local function readAll()
  local values, missing = try('MGET', unpack(KEYS)), {}
  if values.err then
    return nil
  end
  for i = 1, #KEYS do
    if not values[i] then
      missing[#missing + 1] = KEYS[i]
    end
  end
  return (not missing[1] or try('EXISTS', unpack(missing)) == 0) and values
end

-- Fewer are read as fast one by one.
local values = allQuick and (KEYS[16] or several and KEYS[#plans[1] + 1]) and readAll()
if values then
  return decideAll(values)
end

local n = #replies -- each of one charge
local first = n + 1
while KEYS[first] do
  local plan = plans[1]
  if plans[2] then
    plan, at = plans[tonumber(ARGV[at])], at + 1
  end
  local c, reply = plan[1], nil
  if plan.quick and not plan[2] then
    reply = decideOne(KEYS[first], c.cost, c.most, c.limit, c.interval)
  elseif not plan.several then
    reply = decideSeveral(first, plan.at, #plan, plan.settles)
  end
  n = n + 1
  replies[n] = reply or decideSafely(first, plan)
  first = first + #plan
end
return replies
