-- The library of semaphore scripts, included after queue.lua. They have two more keys:
--
-- KEYS[5]  the id's tombstone
-- KEYS[6]  the heavy permits, a zset: "<weight> <id>" -> end of its lease, as in the holds
--
-- A hold is a permit. It is text: H if held, or R or P if reserved for a request that has not claimed it yet; then,
-- each after a space, its lease in µs, its weight and its fence; then, after another space, its label, or the inbox
-- of its process if it is reserved. P and R are the push modes P and - of a request. The mode of a request is
-- "<weight>:<capacity>:<B if it barges, or F>". The record has one more field, "f", the largest fence so far, and "b"
-- if a barging request has been in the queue.
--
-- The weight in use is that of permits that have not expired, so that expired ones block no request, removed or not.

local HEAVY = KEYS[6]
local BATCH = 256 -- maximum of expired permits that are removed at a time

-- find returns a hold.
local function find(id)
  local text = redis.call('HGET', RECORD, 'h' .. id)
  local free = text and redis.call('ZSCORE', HOLDS, id)
  if not free then
    return nil
  end
  local state, ttl, weight, fence, meta = string.match(text, '^([HRP]) (%d+) (%d+) (%d+) (.*)$')
  if not state then
    return nil
  end
  local h = {
    id = id, reserved = state ~= 'H', tells = state == 'P', ttl = tonumber(ttl), weight = tonumber(weight),
    fence = tonumber(fence), meta = meta,
  }
  -- clamped, so that a step back of the clock does not extend a lease
  h.free = math.min(tonumber(free), now + h.ttl)
  h.stretched = h.free < tonumber(free)
  h.left = h.free - now
  h.held = not h.reserved and h.left > 0
  return h
end

-- outlive sets a key to outlive a hold, by half its lease, so that the next one can skip this.
local function outlive(key, h)
  local ms = math.ceil((h.free - now) / 1000) + SPARE_MS
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, num(ms * 1.5))
  end
end

-- rank writes the end of a hold.
local function rank(h)
  redis.call('ZADD', HOLDS, num(h.free), h.id)
  if h.weight > 1 then
    redis.call('ZADD', HEAVY, num(h.free), h.weight .. ' ' .. h.id)
  end
  outlive(RECORD, h)
  outlive(HOLDS, h)
  if h.weight > 1 then
    outlive(HEAVY, h)
  end
end

-- put writes a hold.
local function put(h)
  local text = string.format('%s %.0f %.0f %.0f ', h.reserved and (h.tells and 'P' or 'R') or 'H', h.ttl, h.weight, h.fence) .. h.meta
  redis.call('HSET', RECORD, 'h' .. h.id, text)
  rank(h)
end

local function remove(h)
  redis.call('ZREM', HOLDS, h.id)
  if h.weight > 1 then
    redis.call('ZREM', HEAVY, h.weight .. ' ' .. h.id)
  end
  redis.call('HDEL', RECORD, 'h' .. h.id)
end

-- inuse returns the sum of the weights of all holds.
local function inuse()
  local n = redis.call('ZCOUNT', HOLDS, '(' .. num(now), '+inf')
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', HEAVY, '(' .. num(now), '+inf')) do
    n = n + tonumber(string.match(member, '^%d+')) - 1
  end
  return n
end

-- soonest returns the time until the first hold expires, in µs; zero if there is none.
local function soonest()
  local first = redis.call('ZRANGEBYSCORE', HOLDS, '(' .. num(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[2] and tonumber(first[2]) - now or 0
end

-- unstretch corrects the ends of holds after a step back of the clock, of the 64 that end last. It reads only the
-- last one if its end is right and the largest fence is not ahead of the clock.
local function unstretch()
  local i = 0
  for n = 1, 64 do
    local id = redis.call('ZREVRANGE', HOLDS, i, i)[1]
    local h = id and find(id)
    if not id then
      return
    elseif not h then -- damaged
      redis.call('ZREM', HOLDS, id)
    elseif h.stretched then
      rank(h)
    elseif n == 1 and (tonumber(redis.call('HGET', RECORD, 'f') or 0) or 0) <= now + SECOND then
      return
    else
      i = i + 1
    end
  end
end

-- prune removes expired holds and requests.
local function prune()
  if forget() then
    redis.call('DEL', HEAVY)
    return
  end
  local over = redis.call('ZRANGEBYSCORE', HOLDS, '-inf', num(now), 'LIMIT', 0, BATCH)
  if #over > 0 then
    redis.call('ZREMRANGEBYRANK', HOLDS, 0, #over - 1)
    for i, id in ipairs(over) do
      over[i] = 'h' .. id
    end
    redis.call('HDEL', RECORD, unpack(over))
    local heavy = math.min(redis.call('ZCOUNT', HEAVY, '-inf', num(now)), BATCH)
    if heavy > 0 then
      redis.call('ZREMRANGEBYRANK', HEAVY, 0, heavy - 1)
    end
  end
  prunequeue()
end

local function reserve(w, weight)
  dequeue(w.id)
  put({id = w.id, reserved = true, tells = w.tells, ttl = CLAIM, weight = weight, fence = 0, meta = w.inbox, free = now + CLAIM})
end

-- unreserve removes reservations of unreachable processes.
local function unreserve()
  local soon = redis.call('ZRANGEBYSCORE', HOLDS, '(' .. num(now), num(now + CLAIM), 'LIMIT', 0, OVERLOOK)
  for _, id in ipairs(soon) do
    local h = find(id)
    if h and h.reserved and h.tells and redis.pcall('PUBLISH', h.meta, 'here ' .. id) == 0 then
      remove(h)
    end
  end
end

-- pass reserves permits for requests that fit, from the head of the queue. The first that does not fit blocks those
-- behind it, except barging ones. Unreachable requests are passed over while others fit, and keep their places in
-- case their processes are alive. me is the calling request.
local function pass(me)
  local used, rank, blocked, overlooked = inuse(), 0, false, {}
  for _ = 1, 256 do
    local id = rank < OVERLOOK and redis.call('ZRANGE', QUEUE, rank, rank)[1]
    if not id then
      break
    end
    local w = waiting(id)
    local weight, capacity, how = string.match(w and w.asks or '', '^(%d+):(%d+):([BF])$')
    if not weight then
      dequeue(id)
    elseif used + weight > tonumber(capacity) then
      if not blocked and how == 'F' and redis.call('HEXISTS', RECORD, 'b') == 0 then
        break
      end
      blocked, rank = true, rank + 1
    elseif blocked and how == 'F' then
      rank = rank + 1
    elseif unreachable(w, 'grant', me) then
      overlooked[#overlooked + 1], rank = {w, tonumber(weight), tonumber(capacity)}, rank + 1
    else
      reserve(w, tonumber(weight))
      used = used + weight
    end
  end
  for _, o in ipairs(overlooked) do
    if used + o[2] <= o[3] then
      reserve(o[1], o[2])
      used = used + o[2]
    end
  end
  promote(me)
end

