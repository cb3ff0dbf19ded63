#!lua
-- Looks an operation up, and starts or takes over an attempt at it if it may.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  exists if this owner's attempt has been abandoned
-- ARGV     owner, fingerprint, lease in µs, retention in ms, "1" if re-runs are allowed
--
-- Returns {outcome, number of the attempt, what remains of its lease in µs, state, status, data};
-- the last four where they apply.

local owner, fingerprint = ARGV[1], ARGV[2]
local lease, retention, rerun = tonumber(ARGV[3]), ARGV[4], ARGV[5] == '1'

if redis.call('EXISTS', KEYS[2]) == 1 then
  return {'refused', 0}
end

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]

local function start(number, prior)
  redis.call('SET', KEYS[1], '1F1' .. prior .. owner .. fingerprint .. string.format('%08.0f', number) ..
    string.format('%016.0f%016.0f', now + lease, lease) .. '0000', 'PX', retention)
  return {'started', number}
end

local record = redis.call('GET', KEYS[1])
if not record then
  return start(1, '0')
end

if #record < 113 or not string.find(record, '^1[FCNU][01][01]') or not string.find(string.sub(record, 70, 113), '^%d+$') then
  return redis.error_reply('ERR record of an unknown layout')
end

local state, dirty, prior = string.sub(record, 2, 2), string.sub(record, 3, 3), string.sub(record, 4, 4)
local number = tonumber(string.sub(record, 70, 77))
if string.sub(record, 27, 69) ~= fingerprint then
  return {'mismatched', number}
end
if state == 'F' then
  if string.sub(record, 5, 26) == owner then -- sent twice
    return start(number, prior)
  end
  -- clamped, so that a clock that stepped back stretches no lease
  local left = math.min(tonumber(string.sub(record, 78, 93)) - now, tonumber(string.sub(record, 94, 109)))
  if left > 0 then
    return {'busy', number, left}
  end
  if (dirty == '1' or prior == '1') and not rerun then
    return {'undecided', number}
  end
  return start(number + 1, (dirty == '1' or prior == '1') and '1' or '0')
end
if state == 'U' and rerun then
  return start(number + 1, '1')
end
return {'settled', number, 0, state, tonumber(string.sub(record, 110, 113)), string.sub(record, 114)}
