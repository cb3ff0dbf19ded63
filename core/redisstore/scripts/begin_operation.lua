-- Looks an operation up, and starts or takes over an attempt at it if it may.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  the owner's tombstone: its attempt was abandoned
-- KEYS[3]  the counts of the scope, if there is one; see scope.lua
-- ARGV     owner, fingerprint, lease in µs, retention in ms, the action for an unknown outcome
--          ("rerun", "reconcile" or ""), maximum of records in the scope (0: unlimited), maximum of
--          data in the reply in bytes, the holder and before it its size, 3 digits
--
-- Returns one of
--   - the number of a new attempt, which took nothing over;
--   - the text of a result: its state, the number of the attempt and the status as in the record,
--     its size, a colon, and the result, unless it is too large for the reply;
--   - a list: the outcome and the number of the attempt; then the rest of its lease in µs if it is
--     busy; the time in µs until the first record expires if the scope is full; or the steps and
--     the effects if an attempt took over or is repeated, and after these the number of the scope's
--     records if they were added up for a new one.
--
-- It declares no flags: a server that refuses writes, since its memory is full or its disk fails,
-- refuses a script with flags before it has read anything. This one fails only at its first write,
-- and can return existing records.

--#include integers scope_constants record_constants

-- The fast paths: a result, and a new operation, whose scope has room.

local owner, fingerprint, lease, retention, scope, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), KEYS[3], tonumber(ARGV[6])

local record = redis.call('GETRANGE', KEYS[1], 0, 673 + tonumber(ARGV[7])) -- a large result is read separately

if record ~= '' and string.find(record, '^3[CN][012][01]') and string.sub(record, 27, 69) == fingerprint and
    #record >= 162 and string.find(string.sub(record, 70, 162), '^%d+$') then
  local tail = 163 + tonumber(string.sub(record, 160, 162))
  if tail <= math.min(#record + 1, 675) then
    local bytes = #record - tail + 1
    if #record == 674 + tonumber(ARGV[7]) then
      bytes = redis.call('STRLEN', KEYS[1]) - tail + 1
    end
    return string.sub(record, 2, 2) .. string.sub(record, 70, 77) .. string.sub(record, 110, 113) .. bytes .. ':' ..
      (bytes <= tonumber(ARGV[7]) and string.sub(record, tail) or '')
  end
end

if redis.call('EXISTS', KEYS[2]) == 1 then
  return {'refused', 0}
end

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local now_ms = math.floor(now / 1000)
local leased = string.format(INT, now + lease) .. string.rep('0', 16 - #ARGV[3]) .. ARGV[3] -- 32 digits
local at = string.format(INT, now)
local slice, look = UNCOUNTED, false -- count of the slice; whether to add up the scope

if record == '' then
  if scope then
    local length = math.ceil(retention / SLICES)
    slice = string.format(INT, (math.floor(now_ms / length) + 1) * length + retention)
    local n = math.floor(redis.call('HINCRBY', scope, slice, ONE) / RECORD)
    if n == 1 and redis.call('HLEN', scope) == 1 then
      redis.call('PEXPIREAT', scope, slice)
    else
      look = n == 1 or most > 0 and n % math.ceil(most / SLICES) == 0
    end
  end
  if not look then
    if redis.call('SET', KEYS[1], '3F10' .. owner .. fingerprint .. '00000001' .. leased .. '0000' .. slice .. at .. at .. '0' ..
      ARGV[8] .. NO_MARKS, 'PX', ARGV[4], 'NX') then
      return 1
    end
    look = true -- an empty record is damaged
  end
end

--#include scope record

local function start(outcome, number, state, slice, created, watched, holder, steps)
  redis.call('SET', KEYS[1], '3' .. state .. owner .. fingerprint .. string.format('%08.0f', number) .. leased ..
    '0000' .. slice .. created .. at .. watched .. holder .. NO_MARKS .. steps, 'PX', ARGV[4])
  return {outcome, number, steps, string.sub(state, 2, 2)}
end

if record == '' and redis.call('EXISTS', KEYS[1]) == 0 then
  local records, _, first = add_up(scope, now_ms)
  if most > 0 and records > most then
    redis.call('HINCRBY', scope, slice, ONE_LESS)
    return {'full', 0, math.max(first * 1000 - now, 0)}
  end
  local reply = start('started', 1, 'F10', slice, at, '0', ARGV[8], '')
  reply[5] = records
  return reply
end

local r = read_record(record)
if not r or r.tail > #record + 1 then
  return redis.error_reply('ERR record of an unknown layout')
end

-- takes the operation over
local function take_over(outcome, number, state)
  local later, steps = scope and slice_of(now_ms, retention) or UNCOUNTED, ''
  if r.in_flight then
    steps = string.sub(redis.call('GET', KEYS[1]), r.tail + #NO_MARKS)
  end
  local holder = outcome == 'started' and ARGV[8] or string.sub(record, 160, r.tail - 1)
  local reply = start(outcome, number, state, later, r.created, r.watched, holder, steps)
  if scope and r.slice ~= later then
    discount_record(scope, r.slice)
    count_record(scope, later, now_ms)
  end
  return reply
end

if r.fingerprint ~= fingerprint then
  return {'mismatched', r.number}
end
if r.in_flight and r.owner == owner then -- a repeat; its lease began with the first
  return {r.state == 'R' and 'reconcile' or 'started', r.number, string.sub(redis.call('GET', KEYS[1]), r.tail + #NO_MARKS),
    r.effects}
end
if r.in_flight then
  local left = r.ends - now
  if left > r.length then -- the clock stepped back
    left = r.length
    redis.pcall('SETRANGE', KEYS[1], 77, string.format('%016.0f', now + left)) -- fails at full memory
  end
  if left > 0 then
    return {'busy', r.number, left}
  end
end
if r.in_flight or r.state == 'U' then
  local known = r.state == 'F' and r.effects ~= '1' and r.prior == '0'
  if known or ARGV[5] == 'rerun' then
    local effects = r.state == 'F' and r.effects == '2' and '2' or '1'
    return take_over('started', r.number + 1, 'F' .. effects .. (known and '0' or '1'))
  elseif ARGV[5] == 'reconcile' then
    return take_over('reconcile', r.number, 'R1' .. r.prior)
  elseif r.in_flight then
    return {'undecided', r.number}
  end
end
return {'settled', r.number} -- with an unknown outcome
