#!lua flags=allow-oom
-- Ends an attempt as if it had not been, and has a delayed begin of it refused.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  tells, for a while, that this owner's attempt has been abandoned
-- KEYS[3]  what the scope has, if there is a scope; see scope.lua
-- ARGV     owner, how long KEYS[2] lives in ms
--
-- Returns 1, or 0 if the attempt does not own the record.

local head = redis.call('GETRANGE', KEYS[1], 0, 125) -- first: it fails if the key has another type
if not redis.call('SET', KEYS[2], '1', 'NX', 'PX', ARGV[2]) then -- sent twice
  return 1
end
if string.sub(head, 5, 26) ~= ARGV[1] or string.sub(head, 2, 2) ~= 'F' then
  return 0
end
if string.sub(head, 4, 4) == '1' then
  -- an attempt before this one may have had effects: keep what tells of it
  redis.call('SETRANGE', KEYS[1], 2, '1')
  redis.call('SETRANGE', KEYS[1], 4, string.rep('-', 22)) -- no late step of the attempt counts
  redis.call('SETRANGE', KEYS[1], 77, string.rep('0', 16))
else
  redis.call('DEL', KEYS[1])
  if KEYS[3] then
    discount_record(KEYS[3], string.sub(head, 114, 126))
  end
end
return 1
