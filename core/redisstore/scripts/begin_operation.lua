-- Looks an operation up, and starts or takes over an attempt at it if it may.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  the owner's tombstone: its attempt was abandoned
-- KEYS[3]  the counts of the scope, if there is one; see scope.lua
-- ARGV     owner, fingerprint, lease in µs, retention in ms, "1" if re-runs are allowed, maximum of records in
--          the scope (0: unlimited), maximum of data in the reply in bytes
--
-- Returns {outcome, number of the attempt, rest of its lease in µs, state, status, data, bytes of
-- data}; the last five where they apply. Data that is too large for the reply is omitted. If the
-- scope is full, the third is the time until its first record expires.
--
-- It declares no flags: a server that refuses writes, since its memory is full or its disk fails,
-- refuses a script with flags before it has read anything. This one fails only at its first write,
-- and can return existing records.

--#include integers scope_constants

-- The fast path: a new operation, whose scope has room.

local owner, fingerprint, lease, retention, scope, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), KEYS[3], tonumber(ARGV[6])

if redis.call('EXISTS', KEYS[2]) == 1 then
  return {'refused', 0}
end

local record = redis.call('GETRANGE', KEYS[1], 0, 125 + tonumber(ARGV[7])) -- a large result is read separately
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local now_ms = math.floor(now / 1000)
local leased = string.format(INT, now + lease) .. string.rep('0', 16 - #ARGV[3]) .. ARGV[3] -- 32 digits
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
    if redis.call('SET', KEYS[1], '2F10' .. owner .. fingerprint .. '00000001' .. leased .. '0000' .. slice, 'PX', ARGV[4], 'NX') then
      return {'started', 1}
    end
    look = true -- an empty record is damaged
  end
end

--#include scope

local function start(number, prior, slice)
  redis.call('SET', KEYS[1], '2F1' .. prior .. owner .. fingerprint .. string.format('%08.0f', number) .. leased ..
    '0000' .. slice, 'PX', ARGV[4])
  return {'started', number}
end

if record == '' and redis.call('EXISTS', KEYS[1]) == 0 then
  local records, _, first = add_up(scope, now_ms)
  if most > 0 and records > most then
    redis.call('HINCRBY', scope, slice, ONE_LESS)
    return {'full', 0, math.max(first * 1000 - now, 0)}
  end
  return start(1, '0', slice)
end

local rerun = ARGV[5] == '1'
if #record < 126 or not string.find(record, '^2[FCNU][01][01]') or not string.find(string.sub(record, 70, 126), '^%d+$') then
  return redis.error_reply('ERR record of an unknown layout')
end

local state, dirty, prior = string.sub(record, 2, 2), string.sub(record, 3, 3), string.sub(record, 4, 4)
local number = tonumber(string.sub(record, 70, 77))
slice = string.sub(record, 114, 126)

-- takes over the operation; an attempt that died, or ended with an unknown outcome, may have had
-- effects
local function take_over(prior)
  local later = scope and slice_of(now_ms, retention) or UNCOUNTED
  local reply = start(number + 1, prior, later)
  if scope and slice ~= later then
    discount_record(scope, slice)
    count_record(scope, later, now_ms)
  end
  return reply
end

if string.sub(record, 27, 69) ~= fingerprint then
  return {'mismatched', number}
end
if state == 'F' then
  if string.sub(record, 5, 26) == owner then -- a repeat; its lease began with the first
    return {'started', number}
  end
  local left, length = tonumber(string.sub(record, 78, 93)) - now, tonumber(string.sub(record, 94, 109))
  if left > length then -- the clock stepped back
    left = length
    redis.pcall('SETRANGE', KEYS[1], 77, string.format('%016.0f', now + length)) -- fails at full memory
  end
  if left > 0 then
    return {'busy', number, left}
  end
  if (dirty == '1' or prior == '1') and not rerun then
    return {'undecided', number}
  end
  return take_over((dirty == '1' or prior == '1') and '1' or '0')
end
if state == 'U' and rerun then
  return take_over('1')
end
local data = string.sub(record, 127)
local bytes = #data
if bytes == tonumber(ARGV[7]) then
  bytes = redis.call('STRLEN', KEYS[1]) - 126
end
return {'settled', number, 0, state, tonumber(string.sub(record, 110, 113)), bytes == #data and data or '', bytes}
