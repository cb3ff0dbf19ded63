#!lua flags=allow-oom
-- Ends a hold, and sends a push to its holder.
--
-- KEYS     as in lib/queue.lua and lib/lock.lua, and
-- KEYS[6]  the id's tombstone; here "0" and the ID of the call
-- ARGV     id, one of its fences, a random ID of this call, TTL of KEYS[6] in ms
--
-- Returns 1, or 0 if there is no such hold.

--#include integers constants queue lock

local id, fence = ARGV[1], tonumber(ARGV[2])
local before = redis.call('GET', KEYS[6])
if before then -- a repeat, or too late
  return before == '0' .. ARGV[3] and 1 or 0
end
expand(redis.call('GET', LONE))
local mine = find(id)
redis.call('ZSCORE', QUEUE, id)
redis.call('ZSCORE', LIVING, id)
if not mine or not mine.held or fence < mine.first or fence > mine.last then
  return 0
end
remove(id) -- a write that needs no memory; servers before 7 then allow others
redis.call('SET', KEYS[6], '0' .. ARGV[3], 'PX', ARGV[4])
push_last(mine.inbox, 'lost', id)
prune()
pass('')
finish('')
return 1
