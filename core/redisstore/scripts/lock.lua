-- What the scripts of locks share: it stands before each of them, after queue.lua.
--
-- A hold is text: H if held, or R or P if reserved for a request that has still to claim it; X
-- exclusive or S shared; then, between colons, its length and its delay in µs, its first and its last fence,
-- and the length of the inbox's name; then the inbox of its process, and what it says of itself. P and
-- R are as P and - of a request. A request asks for X or S.

-- find returns a hold; its score may be known already.
local function find(id, score)
  local text = redis.call('HGET', RECORD, 'h' .. id)
  local free = text and (score or redis.call('ZSCORE', HOLDS, id))
  if not free then
    return nil
  end
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

-- put writes a hold, and the lock's key if it is given.
local function put(h, key)
  local text = string.format('%s%s:%.0f:%.0f:%.0f:%.0f:%.0f:', h.reserved and (h.tells and 'P' or 'R') or 'H', h.shared and 'S' or 'X',
    h.ttl, h.delay, h.first, h.last, #h.inbox) .. h.inbox .. h.meta
  if key and key ~= '' then
    redis.call('HSET', RECORD, 'k', key, 'h' .. h.id, text)
  else
    redis.call('HSET', RECORD, 'h' .. h.id, text)
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
