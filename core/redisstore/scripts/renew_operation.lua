#!lua flags=allow-oom
-- Extends the lease of an attempt in flight, and keeps its record for at least the retention.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  the counts of the scope, if there is one; see scope.lua
-- ARGV     owner, lease in µs, retention in ms
--
-- Returns 1, or 0 if the attempt does not own the record.

--#include integers scope_constants scope

local head = redis.call('GETRANGE', KEYS[1], 0, 125)
if string.sub(head, 5, 26) ~= ARGV[1] or not string.find(head, '^.[FR]') then
  return 0
end
local t = redis.call('TIME')
local now, scope, before = t[1] * 1000000 + t[2], KEYS[2], string.sub(head, 114, 126)
local now_ms = math.floor(now / 1000)
redis.call('SETRANGE', KEYS[1], 77, string.format(INT, now + tonumber(ARGV[2])) .. string.rep('0', 16 - #ARGV[2]) .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local slice = scope and slice_of(now_ms, tonumber(ARGV[3])) or before
if slice ~= before then
  redis.call('SETRANGE', KEYS[1], 113, slice)
  discount_record(scope, before)
  count_record(scope, slice, now_ms)
end
return 1
