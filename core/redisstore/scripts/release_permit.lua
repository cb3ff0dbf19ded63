#!lua flags=allow-oom
-- Ends a permit or withdraws a request, and refuses a delayed acquire of its id.
--
-- KEYS     as in lib/queue.lua
-- ARGV     id, TTL of KEYS[5] in ms
--
-- Returns 1 if the id held a permit, or 0.

--#include integers constants

-- The fast paths: a held permit of weight 1, of a semaphore without heavier and without expired
-- ones.

if redis.call('EXISTS', KEYS[5], KEYS[6]) == 0 then
  local me = ARGV[1]
  local text, free = redis.call('HGET', KEYS[1], 'h' .. me), redis.call('ZSCORE', KEYS[2], me)
  local ttl = string.match(text or '', '^H (%d+) 1 ')
  local first, queue = redis.call('ZRANGE', KEYS[2], 0, 1, 'WITHSCORES'), redis.call('ZRANGE', KEYS[3], 0, 3)
  local living = redis.call('ZCARD', KEYS[4])
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  if ttl and free and tonumber(first[2]) > now then
    local id = queue[1]
    if not id then
      redis.call('ZREM', KEYS[2], me) -- first, since it needs no memory: servers before 7 then allow other writes
      if first[3] then
        redis.call('HDEL', KEYS[1], 'h' .. me)
      else
        redis.call('DEL', KEYS[1], KEYS[4])
      end
      redis.call('SET', KEYS[5], '1', 'PX', ARGV[2])
      return 1
    end

    -- There is a short queue, and room for its first request only.
    local asks = redis.call('HMGET', KEYS[1], 'q' .. id, 'q' .. (queue[2] or id))
    local alike, capacity, tells, inbox = string.match(asks[1] or '', '^(1:(%d+):F )([P-])(.*)$')
    local alive = living > 0 and redis.call('ZSCORE', KEYS[4], id)
    local used = redis.call('ZCOUNT', KEYS[2], '(' .. string.format(INT, now), '+inf') -- including the caller's, which ends
    -- The TTL of the record and the holds was set for this hold, and is longer than the next one
    -- needs.
    if alike and id ~= me and not queue[4] and used == tonumber(capacity) and alive and tonumber(alive) > now and
      string.sub(asks[2] or '', 1, #alike) == alike and math.min(tonumber(free), now + ttl) - now > CLAIM then
      local message = 'grant ' .. id
      if tells == '-' or redis.pcall('PUBLISH', inbox, message) ~= 0 then
        redis.call('ZREM', KEYS[3], id) -- first, as above
        redis.call('ZREM', KEYS[4], id)
        -- Add before removing: a key that becomes empty is deleted, and loses its TTL.
        redis.call('HSET', KEYS[1], 'h' .. id, (tells == 'P' and 'P' or 'R') .. ' ' .. CLAIM .. ' 1 0 ' .. inbox)
        redis.call('HDEL', KEYS[1], 'h' .. me, 'q' .. id)
        redis.call('ZADD', KEYS[2], string.format(INT, now + CLAIM), id)
        redis.call('ZREM', KEYS[2], me)
        redis.call('SET', KEYS[5], '1', 'PX', ARGV[2])
        if tells == '-' then
          redis.pcall('PUBLISH', inbox, message) -- last, and without effect if an ACL forbids it
        end
        return 1
      end
    end
  end
end

--#include queue semaphore

local id = ARGV[1]
local mine, waits = find(id), redis.call('ZCARD', QUEUE)
redis.call('ZCARD', LIVING)
redis.call('ZCARD', HEAVY)
local first = redis.call('ZRANGE', HOLDS, 0, 1, 'WITHSCORES')
local before = redis.call('GET', KEYS[5])
if before then -- a repeat
  return before == '1' and 1 or 0
end

local held = mine and mine.held
if mine then
  remove(mine) -- a write that needs no memory; servers before 7 then allow others
else
  dequeue(id)
end
redis.call('SET', KEYS[5], held and '1' or '0', 'PX', ARGV[2])
local empty = not first[1] or first[1] == id and not first[3]
if waits > 0 then
  prune()
  pass(id)
  finish(id)
elseif empty then
  redis.call('DEL', RECORD, LIVING)
elseif tonumber(first[2]) <= now then
  prune()
end
return held and 1 or 0
