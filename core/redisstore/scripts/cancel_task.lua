#!lua flags=allow-oom
-- Cancels a task: see store.Delays.
--
-- KEYS     as in put_task.lua
-- ARGV     key, ID of the cancel, for how many ms its outcome is kept, ID of the only task to cancel; or
--          "" for what the key has
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
local only = ARGV[4]
local of_buried = buried(key)
if of_buried and (only == '' or string.sub(of_buried, 2, 23) == only) then
  unearth(key)
  outcome = 2
end
local t = find(key)
if t and (only == '' or t.id == only) then
  put = t.id
  if t.running then
    outcome, t.cancelled = 3, '1'
    if t.follows and only == '' then
      redis.call('HDEL', P, 'f' .. key)
      put, t.follows = t.follows, nil
    end
    save(t)
  else
    outcome = t.tried == '1' and 2 or 1
    drop(t)
  end
end
-- A server without room for the outcome of a cancel that has changed nothing needs none.
close()
if outcome == 0 and only ~= '' then
  return {damaged, 0}
end
local kept = redis.pcall('SET', KEYS[6], ARGV[2] .. outcome .. put, 'PX', ARGV[3])
if kept.err and outcome ~= 0 then
  return kept
end
return {damaged, outcome}
