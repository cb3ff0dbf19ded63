#!lua flags=allow-oom
-- Extends a permit that has not expired, and removes some that have.
--
-- KEYS     as in lib/queue.lua
-- ARGV     id, lease in µs
--
-- Returns 1, or 0 if the id does not hold a permit.

--#include integers constants queue semaphore

local mine = find(ARGV[1])
redis.call('ZCARD', HEAVY)
redis.call('ZCARD', QUEUE)
redis.call('ZCARD', LIVING)
if not mine or not mine.held then
  return 0
end
local ttl = tonumber(ARGV[2])
mine.free = now + ttl
if mine.ttl ~= ttl then
  mine.ttl = ttl
  put(mine)
else
  rank(mine)
end
prune()
return 1
