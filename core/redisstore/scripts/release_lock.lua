#!lua flags=allow-oom
-- Ends a hold or withdraws a request, and refuses a delayed acquire of its id.
--
-- KEYS     as in lib/queue.lua and lib/lock.lua, and
-- KEYS[6]  the id's tombstone: "1" if it held the lock
-- ARGV     id, TTL of KEYS[6] in ms
--
-- Returns 1 if the id held the lock, or 0.

--#include integers constants

-- The fast paths: the only hold, without waiters or with a short queue.

-- The id has the only hold, and there are no waiters.
local alone = redis.call('GET', KEYS[5])
if alone then
  local free, size, named, rest = string.match(alone, LONE_HOLD)
  if free and string.sub(rest, 1, tonumber(size)) == ARGV[1] then
    local ttl, delay = string.match(rest, '^H[XS]:(%d+):(%d+):', 1 + size + named)
    if ttl then
      local t = redis.call('TIME')
      local now = t[1] * SECOND + t[2]
      local held = math.min(tonumber(free), now + ttl + delay) - delay > now
      redis.call('DEL', KEYS[5]) -- first, since it needs no memory: servers before 7 then allow other writes
      redis.call('SET', KEYS[6], held and '1' or '0', 'PX', ARGV[2])
      return held and 1 or 0
    end
  end
end

-- The id has the only hold, and there are no waiters any more, or another request heads a short
-- queue: the lock is reserved for it.
local holds = not alone and redis.call('ZRANGE', KEYS[2], 0, 1, 'WITHSCORES')
if holds and holds[1] == ARGV[1] and not holds[3] and not redis.call('GET', KEYS[6]) then
  local mine, queue = redis.call('HGET', KEYS[1], 'h' .. ARGV[1]), redis.call('ZRANGE', KEYS[3], 0, 3)
  local ttl, delay = string.match(mine or '', '^H[XS]:(%d+):(%d+):')
  local id = queue[1]
  local asks, alive = id and redis.call('HGET', KEYS[1], 'q' .. id), redis.call('ZSCORE', KEYS[4], id or '')
  local tells, inbox = string.match(asks or '', '^X ([P-])(.*)$')
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  local free = math.min(tonumber(holds[2]), now + (ttl or 0) + (delay or 0))
  local held = free - (delay or 0) > now
  if ttl and not id then
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[4]) -- first, as above
    redis.call('SET', KEYS[6], held and '1' or '0', 'PX', ARGV[2])
    return held and 1 or 0
  end
  -- The TTL of the record and the holds was set for this hold, and is longer than the next one
  -- needs.
  if ttl and inbox and id ~= ARGV[1] and not queue[4] and alive and tonumber(alive) > now and free - now > CLAIM then
    local message = 'grant ' .. id
    if tells == '-' or redis.pcall('PUBLISH', inbox, message) ~= 0 then
      redis.call('ZREM', KEYS[3], id) -- first, as above
      redis.call('ZREM', KEYS[4], id)
      -- Add before removing: a key that becomes empty is deleted, and loses its TTL.
      redis.call('HSET', KEYS[1], 'h' .. id, (tells == 'P' and 'P' or 'R') .. 'X:' .. CLAIM .. ':0:0:0:' .. string.format('%d:', #inbox) .. inbox)
      redis.call('HDEL', KEYS[1], 'h' .. ARGV[1], 'q' .. id)
      redis.call('ZADD', KEYS[2], string.format(INT, now + CLAIM), id)
      redis.call('ZREM', KEYS[2], ARGV[1])
      redis.call('SET', KEYS[6], held and '1' or '0', 'PX', ARGV[2])
      if tells == '-' then
        redis.pcall('PUBLISH', inbox, message) -- last, and without effect if an ACL forbids it
      end
      return held and 1 or 0
    end
  end
end

--#include queue lock

local id = ARGV[1]
local before = redis.call('GET', KEYS[6])
if before then -- a repeat
  return before == '1' and 1 or 0
end
if alone then -- another request's
  expand(alone)
  holds = redis.call('ZRANGE', HOLDS, 0, 1, 'WITHSCORES')
end
local mine, waiting = find(id, holds[1] == id and holds[2]), redis.call('ZCARD', QUEUE)
redis.call('ZSCORE', LIVING, id)

local held = mine and mine.held
local last = mine and waiting == 0 and not holds[3]
if last then
  redis.call('DEL', RECORD, HOLDS, LIVING)
else
  remove(id) -- a write that needs no memory; servers before 7 then allow others
  if not mine then
    dequeue(id)
  end
end
redis.call('SET', KEYS[6], held and '1' or '0', 'PX', ARGV[2])
if not last then
  forget()
  pass(id)
  finish(id)
end
return held and 1 or 0
