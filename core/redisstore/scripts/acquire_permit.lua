-- Grants a permit, or queues a request for it.
--
-- KEYS     as above
-- ARGV     id, weight, capacity, "1" to queue, or "2" to keep the capacity of a queued request, B to barge
--          or F, maximum of earlier waiters or "0", lease in µs, inbox, the holder's label, the
--          semaphore's key or nothing if it is secret, push mode: "P" if a message without a receiver
--          proves that the process is gone, or "-"
--
-- Returns the fence as text if granted, {"withdrawn"}, or {"queued", "taken" or "full", weight in use, number of
-- other requests in the queue, µs until the first permit expires, place in the queue from 0}.
--
-- It declares no flags, for the reason in begin_operation.lua: at full memory it still returns the use.

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
