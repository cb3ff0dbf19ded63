#!lua flags=allow-oom
-- Turns a hold into a shared one, and admits shared requests before the next exclusive one.
--
-- KEYS     as in lib/queue.lua and lib/lock.lua
-- ARGV     id, lease in µs, lock-delay in µs
--
-- Returns 1, or 0 if the id does not hold the lock.

--#include integers constants queue lock

local id = ARGV[1]
expand(redis.call('GET', LONE))
local mine = find(id)
redis.call('ZSCORE', QUEUE, id)
redis.call('ZSCORE', LIVING, id)
if not mine or not mine.held then
  return 0
end
mine.shared = true
extend(mine, tonumber(ARGV[2]), tonumber(ARGV[3]))
prune()
pass(id)
finish(id)
return 1
