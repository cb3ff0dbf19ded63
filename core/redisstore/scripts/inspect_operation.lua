#!lua flags=no-writes
-- Returns the record of an operation, for an operator.
--
-- KEYS[1]  the record; records.go has its layout
-- ARGV     "1" to return only one whose outcome is unknown, or whose attempt has died and may have
--          had effects
--
-- Returns {""}, or {state, number of the attempt, effects, µs since it was created, µs since it was
-- changed, rest of the lease in µs, ms until it expires, status, bytes of data, its version, the
-- holder, name of a step, ...}.

--#include record

local head = redis.call('GETRANGE', KEYS[1], 0, 673)
local r = read_record(head)
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if not r then
  return head ~= '' and ARGV[1] ~= '1' and redis.error_reply('ERR record of an unknown layout') or {''}
end
local left = r.in_flight and math.max(math.min(r.ends - now, r.length), 0) or 0
local effects = r.prior == '1' and '1' or r.effects
if ARGV[1] == '1' and r.state ~= 'U' and (not r.in_flight or left > 0 or effects == '0') then
  return {''}
end
local function ago(time) return string.format('%.0f', math.max(now - tonumber(time), 0)) end
local answer = {r.state, r.number, effects, ago(r.created), ago(r.changed), string.format('%.0f', left), redis.call('PTTL', KEYS[1]),
  r.status, r.in_flight and 0 or redis.call('STRLEN', KEYS[1]) - r.tail + 1, r.changed .. r.owner, string.sub(head, 163, r.tail - 1)}
if r.in_flight then
  local record = redis.call('GET', KEYS[1])
  local name, _, at = '', nil, r.tail + 10
  repeat
    name, _, at = next_step(record, at)
    answer[#answer + 1] = name
  until not name
end
return answer
