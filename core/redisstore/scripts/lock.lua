-- What the scripts of locks share: it stands before each of them. All of them have these keys first:
--
-- KEYS[1]  the record, a hash: "k" is the lock's key, "h<id>" a hold, "q<id>" a request in the queue
-- KEYS[2]  the holds, a zset: id -> when it is out of others' way, µs of the server's clock
-- KEYS[3]  the queue, a zset: id -> its place
-- KEYS[4]  the queue's living, a zset: id -> until when, unless it beats
--
-- A hold is text: H if held, or R or P if reserved for a request that has still to claim it; X
-- exclusive or S shared; then, between colons, its length and its delay in µs, its first and its last fence,
-- and the length of the inbox's name; then the inbox of its process, and what it says of itself. A
-- request is X or S; P if a message that nobody receives means that its process is gone, or -, as
-- with P and R above; and an inbox.
--
-- A script that fails has failed before its first write: it reads every key first, so that one of
-- another type is found then.

local RECORD, HOLDS, QUEUE, LIVING = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local SECOND = 1000000
local CLAIM = 2 * SECOND       -- for how long a lock is reserved
local FRONT = 3                -- so many at the head of the queue beat every second,
local FRONT_LIFE = 3 * SECOND  -- and live for three beats,
local LIFE = 30 * SECOND       -- as do the others, who beat every ten
local RISEN = 12 * SECOND      -- one of the others who comes to the front, until it beats
local QUEUE_LIFE = 90 * SECOND
local OVERLOOK = 16            -- at most so many whose processes seem to be gone

local t = redis.call('TIME')
local now = t[1] * SECOND + t[2]
local messages = {}
local fresh = false -- nothing is known of the lock but what this script writes
local left = 0      -- so many have left the queue

local function num(n) return string.format('%.0f', n) end

-- keep has a key live for at least that long.
local function keep(key, us)
  local ms = math.ceil(us / 1000) + 1000
  if fresh or redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, num(ms))
  end
end

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

local function leave(id)
  left = left + 1
  redis.call('ZREM', QUEUE, id)
  redis.call('ZREM', LIVING, id)
  redis.call('HDEL', RECORD, 'q' .. id)
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

local function tell(inbox, message, id)
  messages[#messages + 1] = {inbox, message .. ' ' .. id, id}
end

-- forget drops everything if there is no record, since that outlives the rest.
local function forget()
  fresh = redis.call('EXISTS', RECORD) == 0
  if fresh then
    redis.call('DEL', HOLDS, QUEUE, LIVING)
  end
  return fresh
end

-- prune forgets holds and requests whose time has passed.
local function prune()
  if forget() then
    return
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', HOLDS, '-inf', num(now), 'LIMIT', 0, 64)) do
    remove(id)
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LIVING, '-inf', num(now), 'LIMIT', 0, 64)) do
    leave(id)
  end
end

-- waiting returns a request of the queue, or nil if it is there no longer.
local function waiting(id)
  local text, alive = redis.call('HGET', RECORD, 'q' .. id), redis.call('ZSCORE', LIVING, id)
  if not text or not alive or tonumber(alive) <= now then
    return nil
  end
  return {
    id = id, shared = string.sub(text, 1, 1) == 'S', tells = string.sub(text, 2, 2) == 'P', inbox = string.sub(text, 3),
    alive = tonumber(alive),
  }
end

-- gone sends a message at once, if it may tell whether somebody is there, and reports whether nobody
-- is. Otherwise the message is sent last.
local function gone(w, message, me)
  if not w.tells or w.id == me then
    tell(w.inbox, message, w.id)
    return false
  end
  return redis.pcall('PUBLISH', w.inbox, message .. ' ' .. w.id) == 0
end

local function reserve(w)
  leave(w.id)
  local h = {
    id = w.id, reserved = true, tells = w.tells, shared = w.shared, ttl = CLAIM, delay = 0, first = 0, last = 0,
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
    elseif h and not w.shared or rank >= OVERLOOK then
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

  -- Those who have come to the front are told to beat.
  local front = math.max(FRONT - left, 0)
  for _, id in ipairs(left > 0 and redis.call('ZRANGE', QUEUE, front, OVERLOOK - 1) or {}) do
    local w = front < FRONT and waiting(id)
    if w and w.alive > now + RISEN and gone(w, 'beat', me) then
      redis.call('ZADD', LIVING, num(now + FRONT_LIFE), id)
    elseif w then
      front = front + 1
      if w.alive > now + RISEN then
        redis.call('ZADD', LIVING, num(now + RISEN), id)
      end
    end
  end
end

-- brief reports whether a key of the queue lives for less than half as long as it may have to. One
-- that is not there counts as well.
local function brief(key) return redis.call('PTTL', key) < QUEUE_LIFE / 2000 end

-- finish ends a script that has changed something, on behalf of id.
local function finish(id)
  if brief(QUEUE) or brief(LIVING) then
    if redis.call('ZCARD', QUEUE) > 0 then
      keep(RECORD, QUEUE_LIFE)
      keep(QUEUE, QUEUE_LIFE)
      keep(LIVING, QUEUE_LIFE)
    elseif redis.call('ZCARD', HOLDS) == 0 then
      redis.call('DEL', RECORD, LIVING)
    end
  end
  for _, m in ipairs(messages) do -- last, and in vain if an ACL forbids it
    if m[3] ~= id then
      redis.pcall('PUBLISH', m[1], m[2])
    end
  end
end
