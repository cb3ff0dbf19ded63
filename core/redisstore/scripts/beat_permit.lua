#!lua flags=allow-oom
-- Heartbeat: keeps a request in the queue.
--
-- KEYS     as in lib/queue.lua
-- ARGV     id, push mode as in the request
--
-- Returns {"granted"} if the permit is held by or reserved for the id, {"withdrawn"}, {"missing"}
-- if it is not in the queue, or {"queued", place from 0, µs until the first permit expires}.

--#include integers constants queue semaphore

local id = ARGV[1]
if redis.call('EXISTS', KEYS[5]) == 1 then
  return {'withdrawn'}
end
local function granted()
  local mine = find(id)
  return {mine and mine.left > 0 and 'granted' or 'missing'}
end

local rank, text = redis.call('ZRANK', QUEUE, id), redis.call('HGET', RECORD, 'q' .. id)
redis.call('ZSCORE', LIVING, id)
redis.call('ZCARD', HOLDS)
redis.call('ZCARD', HEAVY)
if not rank then
  return granted()
end
live(id, rank)
set_push_mode(id, text, ARGV[2])
unstretch()
prune()
unreserve()
pass(id)
rank = redis.call('ZRANK', QUEUE, id)
local reply
if rank then
  live(id, rank)
  reply = {'queued', rank, num(soonest())}
else
  reply = granted()
end
finish(id)
return reply
