-- What the scripts of locks share: it stands before each of them, after queue.lua. They have one more key:
--
-- KEYS[5]  a lone hold, instead of all the others: that of a lock that one has and nobody else wants
--
-- A hold is text: H if held, or R or P if reserved for a request that has still to claim it; X
-- exclusive or S shared; then, between colons, its length and its delay in µs, its first and its last fence,
-- and the length of the inbox's name; then the inbox of its process, and what it says of itself. P and
-- R are as P and - of a request. A request asks for X or S.
--
-- A lone hold is text: when it is out of others' way, the length of its id, and that of the lock's key, each
-- with a colon after it; then the id, the key, and the hold. It becomes one of the record when
-- somebody else comes.

local LONE = KEYS[5]

-- read returns a hold of its text and its score.
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
  -- clamped, so that a clock that stepped back stretches nothing
  h.free = math.min(tonumber(free), now + h.ttl + h.delay)
  h.stretched = h.free < tonumber(free)
  h.left = h.free - h.delay - now
  h.held = not h.reserved and h.left > 0
  return h
end

-- find returns a hold; its score may be known already.
local function find(id, score)
  local text = redis.call('HGET', RECORD, 'h' .. id)
  local free = text and (score or redis.call('ZSCORE', HOLDS, id))
  return free and read(id, text, free) or nil
end

-- split returns the id, the lock's key, and when it is out of others' way, of a lone hold, and its text.
local function split(alone)
  local free, size, named, rest = string.match(alone, LONE_HOLD)
  if free then
    local key = size + 1
    local text = key + named
    return string.sub(rest, 1, key - 1), string.sub(rest, key, text - 1), free, string.sub(rest, text)
  end
end

-- unfold has a lone hold, if there is one, be one of the record. What is damaged is dropped.
local function unfold(alone)
  if not alone then
    return
  end
  local id, key, free, text = split(alone)
  redis.call('HLEN', RECORD)
  redis.call('ZCARD', HOLDS)
  redis.call('ZCARD', QUEUE)
  redis.call('ZCARD', LIVING)
  redis.call('DEL', LONE) -- needs no room; servers before 7 then allow what does
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

-- top returns the hold that is in others' way for the longest, if any is.
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
  return {id = '', reserved = true, shared = false, left = 0, free = now, meta = ''} -- more damage: not all at once
end

-- prune forgets holds and requests whose time has passed.
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
  leave(w.id)
  local h = {
    id = w.id, reserved = true, tells = w.tells, shared = w.asks == 'S', ttl = CLAIM, delay = 0, first = 0, last = 0,
    inbox = w.inbox, meta = '', free = now + CLAIM,
  }
  put(h)
  return h
end

-- pass reserves the lock for whoever is first in the queue, if it is free: for all who share it
-- before the next exclusive request, or for one. Those whose process is gone are overlooked, and keep
-- their places in case it is not. me is the request that asks.
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
      leave(id)
    elseif h and w.asks ~= 'S' or rank >= OVERLOOK then
      break
    elseif gone(w, 'grant', me) then
      overlooked, rank = overlooked or w, rank + 1
    else
      h = reserve(w)
    end
  end
  if overlooked and not h then
    reserve(overlooked)
  end
  refront(me)
end
