-- What the scripts of locks and semaphores share: it stands before each of them. All of them have
-- these keys first:
--
-- KEYS[1]  the record, a hash: "k" is the key of the lock or semaphore, "h<id>" a hold, "q<id>" a
--          request in the queue
-- KEYS[2]  the holds, a zset: id -> when it is out of others' way, µs of the server's clock
-- KEYS[3]  the queue, a zset: id -> its place
-- KEYS[4]  the queue's living, a zset: id -> until when, unless it beats
--
-- A request is text: what it asks for; then, after a space, P if a message that nobody receives means
-- that its process is gone, or -; then the inbox of its process. What it asks for, and what a hold is,
-- lock.lua and semaphore.lua say.
--
-- A script that fails has failed before its first write: it reads every key first, so that one of
-- another type is found then.

local RECORD, HOLDS, QUEUE, LIVING = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local t = redis.call('TIME')
local now = t[1] * SECOND + t[2]
local messages = {}
local fresh = false -- nothing is known of the lock but what this script writes
local left = 0      -- so many have left the queue

local function num(n) return string.format('%.0f', n) end

-- keep has a key live for at least that long.
local function keep(key, us)
  local ms = math.ceil(us / 1000) + SPARE_MS
  if fresh or redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, num(ms))
  end
end

local function leave(id)
  left = left + 1
  redis.call('ZREM', QUEUE, id)
  redis.call('ZREM', LIVING, id)
  redis.call('HDEL', RECORD, 'q' .. id)
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

-- prunequeue forgets requests whose time has passed. After the clock stepped back, none lives for longer than one
-- that has just beaten.
local function prunequeue()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LIVING, '(' .. num(now + LIFE), '+inf', 'LIMIT', 0, 64)) do
    redis.call('ZADD', LIVING, num(now + LIFE), id)
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LIVING, '-inf', num(now), 'LIMIT', 0, 64)) do
    leave(id)
  end
end

-- live keeps a request in the queue that has beaten.
local function live(id, rank)
  redis.call('ZADD', LIVING, num(now + (rank < FRONT and FRONT_LIFE or LIFE)), id)
end

-- enqueue puts a request at the end of the queue, with the key of what it asks for if it is given.
local function enqueue(id, asks, tells, inbox, key)
  local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')
  redis.call('ZADD', QUEUE, num(tonumber(last[2] or 0) + 1), id)
  local text = asks .. ' ' .. tells .. inbox
  if key ~= '' then
    redis.call('HSET', RECORD, 'q' .. id, text, 'k', key)
  else
    redis.call('HSET', RECORD, 'q' .. id, text)
  end
  redis.call('ZADD', LIVING, num(now + FRONT_LIFE), id)
end

-- retell notes whether a message to a request in the queue tells.
local function retell(id, text, tells)
  local asks, told, inbox = string.match(text or '', '^(%S+) ([P-])(.*)$')
  if asks and told ~= tells then
    redis.call('HSET', RECORD, 'q' .. id, asks .. ' ' .. tells .. inbox)
  end
end

-- waiting returns a request of the queue, or nil if it is there no longer.
local function waiting(id)
  local text, alive = redis.call('HGET', RECORD, 'q' .. id), redis.call('ZSCORE', LIVING, id)
  if not text or not alive or tonumber(alive) <= now then
    return nil
  end
  local asks, tells, inbox = string.match(text, '^(%S+) ([P-])(.*)$')
  return asks and {id = id, asks = asks, tells = tells == 'P', inbox = inbox, alive = tonumber(alive)}
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

-- refront tells those who have come to the front of the queue to beat. me is the request that asks.
local function refront(me)
  if left == 0 then
    return
  end
  local front = math.max(FRONT - left, 0)
  for _, id in ipairs(redis.call('ZRANGE', QUEUE, front, OVERLOOK - 1)) do
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
local function brief(key) return redis.call('PTTL', key) < BRIEF_MS end

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
