#!lua flags=allow-oom
-- Ends an attempt without a trace, and refuses a delayed begin of it.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  the owner's tombstone: its attempt was abandoned
-- KEYS[3]  the counts of the scope, if there is one; see scope.lua
-- ARGV     owner, TTL of KEYS[2] in ms
--
-- Returns 1, or 0 if the attempt does not own the record.

--#include integers scope_constants scope

local head = redis.call('GETRANGE', KEYS[1], 0, 125) -- first: fails if the key has another type
if not redis.call('SET', KEYS[2], '1', 'NX', 'PX', ARGV[2]) then -- a repeat
  return 1
end
if string.sub(head, 5, 26) ~= ARGV[1] or string.sub(head, 2, 2) ~= 'F' then
  return 0
end
if string.sub(head, 4, 4) == '1' then
  -- an earlier attempt may have had effects: keep the record
  redis.call('SETRANGE', KEYS[1], 2, '1')
  redis.call('SETRANGE', KEYS[1], 4, string.rep('-', 22)) -- late steps of the attempt have no effect
  redis.call('SETRANGE', KEYS[1], 77, string.rep('0', 16))
else
  redis.call('DEL', KEYS[1])
  if KEYS[3] then
    discount_record(KEYS[3], string.sub(head, 114, 126))
  end
end
return 1
