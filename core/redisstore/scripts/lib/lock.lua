-- The library of lock scripts, included after queue.lua. They have one more key:
--
-- KEYS[5]  a lone hold, instead of all other keys: that of a lock with one holder and no waiters
--
-- A hold is text: H if held, or R or P if reserved for a request that has not claimed it yet; X exclusive or S
-- shared; then, between colons, its lease and its lock-delay in µs, its first and its last fence, and the length of
-- the inbox's name; then the inbox of its process, and its label. P and R are the push modes P and - of a request.
-- The mode of a request is X or S.
--
-- A lone hold is text: the end of its lease and delay, the length of its id, and that of the lock's key, each
-- followed by a colon; then the id, the key, and the hold. It is moved into the record when another request arrives.

local LONE = KEYS[5]

-- read parses a hold from its text and its score.
local function read(id, text, free)
  local state, kind, ttl, delay, first, last, size, rest =
    string.match(text, '^([HRP])([XS]):(%d+):(%d+):(%d+):(%d+):(%d+):(.*)$')
  if not state then
    return nil
  end
  local h = {
    id = id, reserved = state ~= 'H', tells = state == 'P', shared = kind == 'S', ttl = tonumber(ttl), delay = tonumber(delay),
    first = tonumber(first), last = tonumber(last),
    inbox = string.sub(rest, 1, tonumber(size)), meta = string.sub(rest, tonumber(size) + 1),
  }
  -- clamped, so that a step back of the clock does not extend a lease
  h.free = math.min(tonumber(free), now + h.ttl + h.delay)
  h.stretched = h.free < tonumber(free)
  h.left = h.free - h.delay - now
  h.held = not h.reserved and h.left > 0
  return h
end

-- find returns a hold; the caller may pass its score.
local function find(id, score)
  local text = redis.call('HGET', RECORD, 'h' .. id)
  local free = text and (score or redis.call('ZSCORE', HOLDS, id))
  return free and read(id, text, free) or nil
end

-- split returns the id, the lock's key, the end, and the text of a lone hold.
local function split(alone)
  local free, size, named, rest = string.match(alone, LONE_HOLD)
  if free then
    local key = size + 1
    local text = key + named
    return string.sub(rest, 1, key - 1), string.sub(rest, key, text - 1), free, string.sub(rest, text)
  end
end

-- expand moves a lone hold, if there is one, into the record. A damaged one is dropped.
local function expand(alone)
  if not alone then
    return
  end
  local id, key, free, text = split(alone)
  redis.call('HLEN', RECORD)
  redis.call('ZCARD', HOLDS)
  redis.call('ZCARD', QUEUE)
  redis.call('ZCARD', LIVING)
  redis.call('DEL', LONE) -- a write that needs no memory; servers before 7 then allow others
  if not id then
    return
  end
  if key ~= '' then
    redis.call('HSET', RECORD, 'h' .. id, text, 'k', key)
  else
    redis.call('HSET', RECORD, 'h' .. id, text)
  end
  redis.call('ZADD', HOLDS, free, id)
  keep(RECORD, tonumber(free) - now)
  keep(HOLDS, tonumber(free) - now)
end

-- write returns the text of a hold.
local function write(h)
  return string.format('%s%s:%.0f:%.0f:%.0f:%.0f:%.0f:', h.reserved and (h.tells and 'P' or 'R') or 'H', h.shared and 'S' or 'X',
    h.ttl, h.delay, h.first, h.last, #h.inbox) .. h.inbox .. h.meta
end

-- put writes a hold, and the lock's key if it is given.
local function put(h, key)
  if key and key ~= '' then
    redis.call('HSET', RECORD, 'k', key, 'h' .. h.id, write(h))
  else
    redis.call('HSET', RECORD, 'h' .. h.id, write(h))
  end
  redis.call('ZADD', HOLDS, num(h.free), h.id)
  keep(RECORD, h.free - now)
  keep(HOLDS, h.free - now)
end

local function extend(h, ttl, delay)
  h.ttl, h.delay, h.free = ttl, delay, now + ttl + delay
  put(h)
end

local function remove(id)
  redis.call('ZREM', HOLDS, id)
  redis.call('HDEL', RECORD, 'h' .. id)
end

-- top returns the hold that ends last, if there is one.
local function top()
  for _ = 1, 64 do
    local first = redis.call('ZREVRANGE', HOLDS, 0, 0, 'WITHSCORES')
    if not first[1] or tonumber(first[2]) <= now then
      return nil
    end
    local h = find(first[1], first[2])
    if not h then -- damaged
      remove(first[1])
    elseif h.stretched then
      redis.call('ZADD', HOLDS, num(h.free), h.id)
    else
      return h
    end
  end
  return {id = '', reserved = true, shared = false, left = 0, free = now, meta = ''} -- more damage: the rest by later calls
end

-- prune removes expired holds and requests.
local function prune()
  if forget() then
    return
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', HOLDS, '-inf', num(now), 'LIMIT', 0, 64)) do
    remove(id)
  end
  prunequeue()
end

local function reserve(w)
  dequeue(w.id)
  local h = {
    id = w.id, reserved = true, tells = w.tells, shared = w.asks == 'S', ttl = CLAIM, delay = 0, first = 0, last = 0,
    inbox = w.inbox, meta = '', free = now + CLAIM,
  }
  put(h)
  return h
end

-- pass reserves the lock, if it is free, for the head of the queue: for all shared requests before the next exclusive
-- one, or for one. Unreachable requests are passed over, and keep their places in case their processes are alive. me
-- is the calling request.
local function pass(me)
  local h, rank, overlooked = top(), 0, nil
  for _ = 1, 256 do
    if h and not h.shared then
      break
    end
    local id = redis.call('ZRANGE', QUEUE, rank, rank)[1]
    if not id then
      break
    end
    local w = waiting(id)
    if not w then
      dequeue(id)
    elseif h and w.asks ~= 'S' or rank >= OVERLOOK then
      break
    elseif unreachable(w, 'grant', me) then
      overlooked, rank = overlooked or w, rank + 1
    else
      h = reserve(w)
    end
  end
  if overlooked and not h then
    reserve(overlooked)
  end
  promote(me)
end
