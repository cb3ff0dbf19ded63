-- Makes a buried task due: see store.TaskKeeper.
--
-- KEYS     as in task.lua
-- ARGV     key, ID
--
-- Returns the number of damaged tasks, and 1 if the task was revived, by this call or, for a
-- repeat, by an earlier one, or 0.

--#include integers task

local key, id = ARGV[1], ARGV[2]
local t = find(key)
local b = not t and buried(key)
local revived = b and string.sub(b, 2, 23) == id
if revived then
  redis.call('HSET', P, 'l' .. key, redis.call('HGET', P, 'b' .. key) or '')
  unearth(key)
  save({key = key, running = false, was = false, tried = '1', cancelled = '0', outcome = '0', id = id, owner = NO_OWNER, attempt = 0,
    fence = tonumber(string.sub(b, 34, 49)) or 0, holder = '', at = now})
end
close()
return {damaged, (revived or t and t.id == id) and 1 or 0}
