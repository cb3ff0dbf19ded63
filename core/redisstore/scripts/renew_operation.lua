#!lua flags=allow-oom
-- Extends the lease of an attempt in flight, and keeps its record for at least the retention.
--
-- KEYS[1]  the record; records.go has its layout
-- ARGV     owner, lease in µs, retention in ms
--
-- Returns 1, or 0 if the attempt does not own the record.

local head = redis.call('GETRANGE', KEYS[1], 0, 25)
if string.sub(head, 5, 26) ~= ARGV[1] or string.sub(head, 2, 2) ~= 'F' then
  return 0
end
local t = redis.call('TIME')
local lease = tonumber(ARGV[2])
redis.call('SETRANGE', KEYS[1], 77, string.format('%016.0f%016.0f', t[1] * 1000000 + t[2] + lease, lease))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
