#!lua flags=allow-oom
-- Records the possible effects of the attempt in flight, unless a later mark has been recorded.
--
-- KEYS[1]  the record; records.go has its layout
-- ARGV     owner, effects as in the record, Seq of the mark (10 digits)
--
-- Returns 1, or 0 if the attempt does not own the record.

--#include record

local head = redis.call('GETRANGE', KEYS[1], 0, 683)
local r = read_record(head)
if not r or r.owner ~= ARGV[1] or not r.in_flight then
  return 0
end
if string.sub(head, r.tail, r.tail + 9) < ARGV[3] then -- compared as text: both have 10 digits
  local t = redis.call('TIME')
  redis.call('SETRANGE', KEYS[1], 2, ARGV[2])
  redis.call('SETRANGE', KEYS[1], 142, string.format('%016.0f', t[1] * 1000000 + t[2]))
  redis.call('SETRANGE', KEYS[1], r.tail - 1, ARGV[3])
end
return 1
