-- Grants a permit, or queues a request for it.
--
-- KEYS     as in lib/queue.lua
-- ARGV     id, weight, capacity, "1" to queue, or "2" to keep the capacity of a queued request, B to barge
--          or F, maximum of earlier waiters or "0", lease in µs, inbox, the holder's label, the
--          semaphore's key or nothing if it is secret, push mode: "P" if a message without a receiver
--          proves that the process is gone, or "-"
--
-- Returns the fence as text if granted, {"withdrawn"}, or {"queued", "taken" or "full", weight in
-- use, number of other requests in the queue, µs until the first permit expires, place in the queue
-- from 0}.
--
-- It declares no flags, for the reason in begin_operation.lua: at full memory it still returns the
-- use.

--#include integers constants

-- The fast paths: a permit of weight 1, of a semaphore without heavier ones.

if ARGV[2] == '1' and redis.call('EXISTS', KEYS[5], KEYS[6]) == 0 then
  local id, ttl, capacity = ARGV[1], ARGV[7], tonumber(ARGV[3])
  local fields = redis.call('HMGET', KEYS[1], 'h' .. id, 'q' .. id, 'f')
  local free, queued = redis.call('ZSCORE', KEYS[2], id), redis.call('ZCARD', KEYS[3])
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  local after = '(' .. string.format(INT, now)
  local used = redis.call('ZCOUNT', KEYS[2], after, '+inf')

  -- The permit is reserved for the caller, which claims it, or there is room and no waiter.
  local lasts = string.match(fields[1] or '', '^[RP] (%d+) 1 ')
  local claims = lasts and free and math.min(tonumber(free), now + lasts) > now
  if claims or not fields[1] and queued == 0 and used < capacity then
    local fence = math.max((tonumber(fields[3] or 0) or 0) + 1, now)
    fence = string.format(fence < 2 ^ 62 and INT or '%.0f', fence) -- a larger number is damaged, and must not look like a fence
    local text = 'H ' .. ttl .. ' 1 ' .. fence .. ' ' .. ARGV[9]
    if ARGV[10] ~= '' then
      redis.call('HSET', KEYS[1], 'h' .. id, text, 'f', fence, 'k', ARGV[10])
    else
      redis.call('HSET', KEYS[1], 'h' .. id, text, 'f', fence)
    end
    redis.call('ZADD', KEYS[2], string.format(INT, now + ttl), id)
    local ms = math.ceil(ttl / 1000) + SPARE_MS
    for i = 1, 2 do
      if redis.call('PTTL', KEYS[i]) < ms then -- longer than the hold, so that the next one can skip this
        redis.call('PEXPIRE', KEYS[i], string.format(INT, math.ceil(ms * 1.5)))
      end
    end
    return fence
  end

  -- There is no room, and the caller is new in an unlimited queue and does not barge.
  if ARGV[4] == '1' and ARGV[5] == 'F' and ARGV[6] == '0' and not fields[1] and not fields[2] and fields[3] and used >= capacity then
    local back, living = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES'), redis.call('ZCARD', KEYS[4])
    local first = redis.call('ZRANGEBYSCORE', KEYS[2], after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local text = '1:' .. ARGV[3] .. ':F ' .. ARGV[11] .. ARGV[8]
    if first[2] - now > tonumber(ttl) then
      first[2] = now + ttl -- the clock may have stepped back; a heartbeat corrects the end
    end
    redis.call('ZADD', KEYS[3], string.format('%.0f', (back[2] or 0) + 1), id)
    if ARGV[10] ~= '' then
      redis.call('HSET', KEYS[1], 'q' .. id, text, 'k', ARGV[10])
    else
      redis.call('HSET', KEYS[1], 'q' .. id, text)
    end
    redis.call('ZADD', KEYS[4], string.format(INT, now + FRONT_LIFE), id)
    if queued == 0 or living == 0 or redis.call('PTTL', KEYS[3]) < BRIEF_MS or redis.call('PTTL', KEYS[4]) < BRIEF_MS then
      local ms = QUEUE_LIFE / 1000 + SPARE_MS
      if redis.call('PTTL', KEYS[1]) < ms then
        redis.call('PEXPIRE', KEYS[1], ms)
      end
      redis.call('PEXPIRE', KEYS[3], ms)
      redis.call('PEXPIRE', KEYS[4], ms)
    end
    return {'queued', used, queued, string.format('%.0f', first[2] - now), queued}
  end
end

--#include queue semaphore

local id, weight, capacity, queue, barges = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] ~= '0', ARGV[5] == 'B'
local most, ttl, inbox, meta, key = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10]

if redis.call('EXISTS', KEYS[5]) == 1 then
  return {'withdrawn'}
end
local mine = find(id)
if mine then
  redis.call('ZCARD', HEAVY)
end
if mine and mine.held then -- a repeat
  mine.ttl, mine.free = ttl, now + ttl
  put(mine)
  return num(mine.fence)
end

local function grant()
  local last = tonumber(redis.call('HGET', RECORD, 'f') or 0) or 0
  local fence = math.max(last + 1, now)
  if key ~= '' then
    redis.call('HSET', RECORD, 'k', key, 'f', num(fence))
  else
    redis.call('HSET', RECORD, 'f', num(fence))
  end
  put({id = id, reserved = false, ttl = ttl, weight = weight, fence = fence, meta = meta, free = now + ttl})
  return num(fence)
end

if mine and mine.left > 0 then -- the usual claim
  return grant()
end
local used, others = inuse(), redis.call('ZCARD', QUEUE)
if others == 0 and used + weight <= capacity then -- the common case
  return grant()
end
if forget() then
  redis.call('DEL', HEAVY)
  used, others = 0, 0
end
local place = redis.call('ZSCORE', QUEUE, id)
redis.call('ZSCORE', LIVING, id)
if used + weight > capacity then
  unstretch()
end
local asks = string.format('%.0f:%.0f:%s', weight, capacity, barges and 'B' or 'F')
if place and ARGV[4] == '1' then
  local text = redis.call('HGET', RECORD, 'q' .. id)
  if text and string.sub(text, 1, #asks + 1) ~= asks .. ' ' then -- another capacity
    redis.call('HSET', RECORD, 'q' .. id, asks .. ' ' .. ARGV[11] .. inbox)
  end
end
if place or others > 0 and used < capacity then -- a waiter may be next
  prune()
  pass(id)
  place, mine = redis.call('ZSCORE', QUEUE, id), find(id)
  used, others = inuse(), redis.call('ZCARD', QUEUE)
end
if mine and mine.reserved and mine.left > 0 or not place and (others == 0 or barges) and used + weight <= capacity then
  local reply = grant()
  finish(id)
  return reply
end

local outcome, rank = 'taken', 0
if queue and not place and most > 0 and others >= most then
  prunequeue()
  others = redis.call('ZCARD', QUEUE)
end
if queue and not place and most > 0 and others >= most then
  outcome = 'full'
elseif queue then
  outcome, rank = 'queued', others
  if place then
    others = others - 1
    rank = redis.call('ZRANK', QUEUE, id) or 0
    live(id, 0)
  else
    enqueue(id, asks, ARGV[11], inbox, key)
    if barges then
      redis.call('HSET', RECORD, 'b', '1')
    end
  end
end
local left = soonest()
finish(id)
return {outcome, used, others, num(left), rank}
