#!lua flags=allow-oom
-- Ends a hold for its holder, and tells it.
--
-- KEYS     as above, and
-- KEYS[6]  tells, for a while, that the id has been released; here "0" and who did it
-- ARGV     id, one of its fences, a random text that tells this call from others, how long KEYS[6]
--          lives in ms
--
-- Returns 1, or 0 if there is no such hold.

local id, fence = ARGV[1], tonumber(ARGV[2])
local before = redis.call('GET', KEYS[6])
if before then -- sent twice, or too late
  return before == '0' .. ARGV[3] and 1 or 0
end
unfold(redis.call('GET', LONE))
local mine = find(id)
redis.call('ZSCORE', QUEUE, id)
redis.call('ZSCORE', LIVING, id)
if not mine or not mine.held or fence < mine.first or fence > mine.last then
  return 0
end
remove(id) -- needs no room; servers before 7 then allow what does
redis.call('SET', KEYS[6], '0' .. ARGV[3], 'PX', ARGV[4])
tell(mine.inbox, 'lost', id)
prune()
pass('')
finish('')
return 1
