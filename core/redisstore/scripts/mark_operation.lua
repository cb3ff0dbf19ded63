#!lua flags=allow-oom
-- Records whether the attempt in flight may have had effects, unless a later mark has been
-- recorded.
--
-- KEYS[1]  the record; records.go has its layout
-- ARGV     owner, "1" if it may, Seq of the mark (10 digits)
--
-- Returns 1, or 0 if the attempt does not own the record.

local head = redis.call('GETRANGE', KEYS[1], 0, 135)
if string.sub(head, 5, 26) ~= ARGV[1] or string.sub(head, 2, 2) ~= 'F' then
  return 0
end
if string.sub(head, 127, 136) < ARGV[3] then -- compared as text: both have 10 digits, or there was no mark
  redis.call('SETRANGE', KEYS[1], 2, ARGV[2])
  redis.call('SETRANGE', KEYS[1], 126, ARGV[3])
end
return 1
