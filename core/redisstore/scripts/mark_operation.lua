#!lua flags=allow-oom
-- Records whether the attempt in flight may have had effects.
--
-- KEYS[1]  the record; records.go has its layout
-- ARGV     owner, "1" if it may
--
-- Returns 1, or 0 if the attempt does not own the record.

local head = redis.call('GETRANGE', KEYS[1], 0, 25)
if string.sub(head, 5, 26) ~= ARGV[1] or string.sub(head, 2, 2) ~= 'F' then
  return 0
end
redis.call('SETRANGE', KEYS[1], 2, ARGV[2])
return 1
