#!lua flags=allow-oom
-- Cancels a task: see store.Delays.
--
-- KEYS     as in put_task.lua
-- ARGV     key, ID of the cancel, for how many ms its outcome is kept
--
-- Returns the number of damaged tasks, and the outcome, as a number.

--#include integers task

local key, outcome, put = ARGV[1], 0, ''
local earlier = redis.call('GET', KEYS[6])
if earlier then
  if string.sub(earlier, 1, 22) == ARGV[2] then
    return {damaged, tonumber(string.sub(earlier, 23, 23))}
  end
  put = string.sub(earlier, 24) -- a cancel of nothing forgets nothing
end
if buried(key) then
  unearth(key)
  outcome = 2
end
local t = find(key)
if t then
  put = t.follows or t.id
  if t.running then
    redis.call('HDEL', P, 'f' .. key)
    outcome, t.cancelled, t.follows = 3, '1', nil
    save(t)
  else
    outcome = t.tried == '1' and 2 or 1
    drop(t)
  end
end
-- A server without room for the outcome of a cancel that has changed nothing needs none.
close()
local kept = redis.pcall('SET', KEYS[6], ARGV[2] .. outcome .. put, 'PX', ARGV[3])
if kept.err and outcome ~= 0 then
  return kept
end
return {damaged, outcome}
