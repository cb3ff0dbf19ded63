-- Puts a task: see store.Delays.
--
-- KEYS     as in task.lua, and the outcome of the last cancel of the key, with the put that it has
--          cancelled: its ID, 22 characters, the outcome, and the put's ID
-- ARGV     key, ID, payload, delay in µs, "1" to leave an existing task as it is, maximum of tasks (0:
--          unlimited), "1" if the put may have been carried out before
--
-- Returns the number of damaged tasks, the outcome, as a number, and the time in µs until an existing
-- task that was kept is due.
--
-- It declares no flags, for the reason in begin_operation.lua.

--#include integers task

local key, id, delay, most = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[6])
local ran = ARGV[7] == '1'
local t = find(key)

local function answer(outcome, due)
  close()
  return {damaged, outcome, due}
end

if t and t.id == id then
  return answer(tonumber(t.outcome), 0)
end
if t and t.follows == id then
  return answer(2, 0)
end
local cancelled = redis.call('GET', KEYS[6])
if cancelled and string.sub(cancelled, 24) == id then
  return answer(3, 0)
end
if t and ARGV[5] == '1' then
  return answer(3, t.running and 0 or math.max(t.at - now, 0))
end
if not t and most > 0 then
  if redis.call('ZCARD', Z) + redis.call('ZCARD', B) >= most then
    sweep()
  end
  if redis.call('ZCARD', Z) + redis.call('ZCARD', B) >= most then
    return answer(4, 0)
  end
end

local outcome = 0
if t and t.running then
  redis.call('HSET', P, 'f' .. key, ARGV[3])
  outcome, t.follows, t.follows_due, t.follows_ran = 2, id, now + delay, ran
else
  redis.call('HSET', P, 'l' .. key, ARGV[3])
  if t then
    outcome = 1
    t.tried = (t.lost or ran) and '1' or '0' -- an owner whose lease has ended may not know it yet
  else
    t = {key = key, fence = 0, was = false, tried = ran and '1' or '0'}
  end
  t.running, t.cancelled, t.outcome, t.id, t.owner = false, '0', tostring(outcome), id, NO_OWNER
  t.attempt, t.at, t.holder = 0, now + delay, ''
end
save(t)
return answer(outcome, 0)
