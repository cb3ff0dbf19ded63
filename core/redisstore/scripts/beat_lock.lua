#!lua flags=allow-oom
-- Keeps a request in the queue.
--
-- KEYS     as above, and
-- KEYS[5]  exists if the id has been released
-- ARGV     id
--
-- Returns {"granted"} if the lock is held by or reserved for the id, {"withdrawn"}, {"missing"} if the
-- queue does not know it, or {"queued", the place from 0, µs until the lock may be free}.

local id = ARGV[1]
if redis.call('EXISTS', KEYS[5]) == 1 then
  return {'withdrawn'}
end
local rank = redis.call('ZRANK', QUEUE, id)
redis.call('ZSCORE', LIVING, id)
if not rank then
  local mine = find(id)
  return {mine and mine.left > 0 and 'granted' or 'missing'}
end

local function live(rank)
  redis.call('ZADD', LIVING, num(now + (rank < FRONT and FRONT_LIFE or LIFE)), id)
end

local h = top()
redis.call('ZREM', QUEUE, '') -- needs no room; servers before 7 then allow what does
live(rank)
if h and not h.shared then -- nobody's turn
  if redis.call('PTTL', QUEUE) < QUEUE_LIFE / 2000 then -- half of it, in ms
    finish(id)
  end
  return {'queued', rank, num(h.free - now)}
end
prune()
pass()
rank = redis.call('ZRANK', QUEUE, id)
local reply
if rank then
  live(rank)
  h = top()
  reply = {'queued', rank, num(math.max(h and h.free - now or 0, 0))}
else
  local mine = find(id)
  reply = {mine and mine.left > 0 and 'granted' or 'missing'}
end
finish(id)
return reply
