#!lua flags=allow-oom
-- Heartbeat: keeps a request in the queue.
--
-- KEYS     as in lib/queue.lua and lib/lock.lua, and
-- KEYS[6]  the id's tombstone
-- ARGV     id, push mode as in the request
--
-- Returns {"granted"} if the lock is held by or reserved for the id, {"withdrawn"}, {"missing"} if
-- it is not in the queue, or {"queued", place from 0, µs until the lock may be free}.

--#include integers constants

-- The fast path: no waiter can be next, and the request does not change.

local id = ARGV[1]
local rank = redis.call('ZRANK', KEYS[3], id)
local held = rank and redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if held and held[1] and redis.call('EXISTS', KEYS[6]) == 0 then
  local fields = redis.call('HMGET', KEYS[1], 'q' .. id, 'h' .. held[1])
  local tells = string.match(fields[1] or '', '^%S+ ([P-])')
  local ttl, delay = string.match(fields[2] or '', '^HX:(%d+):(%d+):')
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  local free = tonumber(held[2])
  -- A step back of the clock, and keys that expire soon, go to the slow path.
  if tells == ARGV[2] and ttl and free > now and free <= now + ttl + delay and redis.call('PTTL', KEYS[3]) >= BRIEF_MS then
    redis.call('ZADD', KEYS[4], string.format(INT, now + (rank < FRONT and FRONT_LIFE or LIFE)), id)
    return {'queued', rank, string.format('%.0f', free - now)}
  end
end

--#include queue lock

if redis.call('EXISTS', KEYS[6]) == 1 then
  return {'withdrawn'}
end
local text = redis.call('HGET', RECORD, 'q' .. id)
redis.call('ZSCORE', LIVING, id)
if not rank then
  expand(redis.call('GET', LONE))
  local mine = find(id)
  return {mine and mine.left > 0 and 'granted' or 'missing'}
end

local h = top()
live(id, rank)
set_push_mode(id, text, ARGV[2])
if h and h.reserved and h.tells and redis.pcall('PUBLISH', h.inbox, 'here ' .. h.id) == 0 then
  remove(h.id) -- its process is gone
  h = top()
end
if h and not h.shared then -- no waiter can be next
  if redis.call('PTTL', QUEUE) < BRIEF_MS then
    finish(id)
  end
  return {'queued', rank, num(h.free - now)}
end
prune()
pass(id)
rank = redis.call('ZRANK', QUEUE, id)
local reply
if rank then
  live(id, rank)
  h = top()
  reply = {'queued', rank, num(math.max(h and h.free - now or 0, 0))}
else
  local mine = find(id)
  reply = {mine and mine.left > 0 and 'granted' or 'missing'}
end
finish(id)
return reply
