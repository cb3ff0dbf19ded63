#!lua flags=allow-oom
-- Extends the leases of attempts at tasks of a queue: see store.Delays.
--
-- KEYS     as in task.lua
-- ARGV     for each: key, ID, owner, lease in µs
--
-- Returns the number of damaged tasks, and for each 1 if the owner has the task, or 0.

--#include integers task

local owned = {0}
for i = 1, #ARGV, 4 do
  local t = find(ARGV[i])
  local has = t and t.running and t.id == ARGV[i + 1] and t.owner == ARGV[i + 2]
  if has then
    redis.call('ZADD', Z, string.format(INT, now + ARGV[i + 3]), t.key)
  end
  owned[#owned + 1] = has and 1 or 0
end
close()
owned[1] = damaged
return owned
