-- Settles an operation whose outcome is unknown, if its record is as it was inspected.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  the inboxes that await the end of an attempt
-- KEYS[3]  the counts of the scope, if there is one; see scope.lua
-- ARGV     owner; version, or "" for that of the owner; state (C, N, or F: it has not happened);
--          status, 4 digits; data; retention in ms
--
-- Returns 0 if it is resolved, 1 if the record has changed, 2 if its lease has not ended, 3 if its
-- outcome is known.
--
-- It declares no flags, for the reason in begin_operation.lua.

--#include integers scope_constants scope record_constants record watchers

local head = redis.call('GETRANGE', KEYS[1], 0, 673)
local r = read_record(head)
local resolved = 'resolved' .. string.sub(ARGV[1], 1, 14) -- the owner of nothing in flight
if not r then
  return 1
elseif r.owner == resolved then -- a repeat
  return 0
end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if r.state ~= 'R' or r.owner ~= ARGV[1] then
  if ARGV[2] ~= r.changed .. r.owner then
    return 1
  elseif not r.in_flight and r.state ~= 'U' then
    return 3
  elseif r.in_flight and math.min(r.ends - now, r.length) > 0 then
    return 2
  end
end
local now_ms = math.floor(now / 1000)
local scope = r.slice ~= UNCOUNTED and KEYS[3]
local slice = scope and slice_of(now_ms, tonumber(ARGV[6])) or r.slice
local zeros = string.rep('0', 16)
redis.call('SET', KEYS[1], '3' .. ARGV[3] .. '00' .. resolved .. string.sub(head, 27, 77) .. zeros .. zeros .. ARGV[4] ..
  slice .. r.created .. string.format('%016.0f', now) .. '0' .. string.sub(head, 160, r.tail - 1) ..
  (ARGV[3] == 'F' and NO_MARKS or ARGV[5]), 'PX', ARGV[6])
if scope then -- the record is kept for longer
  discount_record(scope, r.slice)
  count_record(scope, slice, now_ms)
  redis.pcall('HINCRBY', scope, slice, string.format('%d', #ARGV[5]))
end
if r.watched == '1' then
  ended(KEYS[1], KEYS[2])
end
return 0
