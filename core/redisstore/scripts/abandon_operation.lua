#!lua flags=allow-oom
-- Ends an attempt without a trace, and refuses a delayed begin of it.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  the owner's tombstone: its attempt was abandoned
-- KEYS[3]  the inboxes that await the end of the attempt
-- KEYS[4]  the counts of the scope, if there is one; see scope.lua
-- ARGV     owner, TTL of KEYS[2] in ms
--
-- Returns 1, or 0 if the attempt does not own the record.

--#include integers scope_constants scope record watchers

local head = redis.call('GETRANGE', KEYS[1], 0, 673) -- first: fails if the key has another type
if not redis.call('SET', KEYS[2], '1', 'NX', 'PX', ARGV[2]) then -- a repeat
  return 1
end
local r = read_record(head)
if not r or r.owner ~= ARGV[1] or not r.in_flight then
  return 0
end
local t = redis.call('TIME')
local at = string.format('%016.0f', t[1] * 1000000 + t[2])
-- late steps of the attempt have no effect
local noOwner, over = string.rep('-', 22), string.rep('0', 16)
if r.state == 'R' then
  redis.call('SET', KEYS[1], '3U1' .. r.prior .. noOwner .. string.sub(head, 27, 77) .. over .. string.sub(head, 94, 142) .. at .. '0' ..
    string.sub(head, 160, r.tail - 1), 'KEEPTTL')
elseif r.prior == '1' or r.effects == '2' then -- keep the evidence
  if r.prior == '1' then
    redis.call('SETRANGE', KEYS[1], 2, '1')
  end
  redis.call('SETRANGE', KEYS[1], 4, noOwner)
  redis.call('SETRANGE', KEYS[1], 77, over)
  redis.call('SETRANGE', KEYS[1], 142, at .. '0')
else
  redis.call('DEL', KEYS[1])
  if KEYS[4] then
    discount_record(KEYS[4], r.slice)
  end
end
if r.watched == '1' then
  ended(KEYS[1], KEYS[3])
end
return 1
