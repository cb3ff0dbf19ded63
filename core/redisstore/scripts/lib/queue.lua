-- The library of lock and semaphore scripts, included in each of them. Their first keys are:
--
-- KEYS[1]  the record, a hash: "k" is the key of the lock or semaphore, "h<id>" a hold, "q<id>" a
--          request in the queue
-- KEYS[2]  the holds, a zset: id -> end of its lease and lock-delay, µs of the server's clock
-- KEYS[3]  the queue, a zset: id -> its place
-- KEYS[4]  the heartbeats of the queue, a zset: id -> when it expires without another
--
-- A request is text: its mode; then, after a space, its push mode, P if a message without a receiver proves that its
-- process is gone, or -; then the inbox of its process. lock.lua and semaphore.lua have the modes and the layouts of
-- holds.
--
-- A script can fail only before its first write: it reads every key first, so that a key of another type makes it
-- fail then.

local RECORD, HOLDS, QUEUE, LIVING = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local t = redis.call('TIME')
local now = t[1] * SECOND + t[2]
local messages = {}
local fresh = false -- there was no state before this script
local left = 0      -- number of requests that this script has removed

local function num(n) return string.format('%.0f', n) end

-- keep extends the TTL of a key to at least this time.
local function keep(key, us)
  local ms = math.ceil(us / 1000) + SPARE_MS
  if fresh or redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, num(ms))
  end
end

local function dequeue(id)
  left = left + 1
  redis.call('ZREM', QUEUE, id)
  redis.call('ZREM', LIVING, id)
  redis.call('HDEL', RECORD, 'q' .. id)
end

local function push_last(inbox, message, id)
  messages[#messages + 1] = {inbox, message .. ' ' .. id, id}
end

-- forget drops the other keys if there is no record, which outlives them.
local function forget()
  fresh = redis.call('EXISTS', RECORD) == 0
  if fresh then
    redis.call('DEL', HOLDS, QUEUE, LIVING)
  end
  return fresh
end

-- prunequeue removes expired requests. After a step back of the clock, it limits the others to the TTL of a
-- heartbeat.
local function prunequeue()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LIVING, '(' .. num(now + LIFE), '+inf', 'LIMIT', 0, 64)) do
    redis.call('ZADD', LIVING, num(now + LIFE), id)
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LIVING, '-inf', num(now), 'LIMIT', 0, 64)) do
    dequeue(id)
  end
end

-- live records a heartbeat.
local function live(id, rank)
  redis.call('ZADD', LIVING, num(now + (rank < FRONT and FRONT_LIFE or LIFE)), id)
end

-- enqueue appends a request to the queue, and stores the resource's key if it is given.
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

-- set_push_mode stores the push mode of a request in the queue.
local function set_push_mode(id, text, tells)
  local asks, mode, inbox = string.match(text or '', '^(%S+) ([P-])(.*)$')
  if asks and mode ~= tells then
    redis.call('HSET', RECORD, 'q' .. id, asks .. ' ' .. tells .. inbox)
  end
end

-- waiting returns a request of the queue, or nil if it is not in the queue.
local function waiting(id)
  local text, alive = redis.call('HGET', RECORD, 'q' .. id), redis.call('ZSCORE', LIVING, id)
  if not text or not alive or tonumber(alive) <= now then
    return nil
  end
  local asks, tells, inbox = string.match(text, '^(%S+) ([P-])(.*)$')
  return asks and {id = id, asks = asks, tells = tells == 'P', inbox = inbox, alive = tonumber(alive)}
end

-- unreachable publishes to a request with push mode P, and reports whether no one received it. With other requests
-- the message is sent last.
local function unreachable(w, message, me)
  if not w.tells or w.id == me then
    push_last(w.inbox, message, w.id)
    return false
  end
  return redis.pcall('PUBLISH', w.inbox, message .. ' ' .. w.id) == 0
end

-- promote asks requests that have reached the front of the queue for a heartbeat. me is the calling request.
local function promote(me)
  if left == 0 then
    return
  end
  local front = math.max(FRONT - left, 0)
  for _, id in ipairs(redis.call('ZRANGE', QUEUE, front, OVERLOOK - 1)) do
    local w = front < FRONT and waiting(id)
    if w and w.alive > now + RISEN and unreachable(w, 'beat', me) then
      redis.call('ZADD', LIVING, num(now + FRONT_LIFE), id)
    elseif w then
      front = front + 1
      if w.alive > now + RISEN then
        redis.call('ZADD', LIVING, num(now + RISEN), id)
      end
    end
  end
end

-- expires_soon reports whether a key of the queue has less than half of its TTL left, or does not exist.
local function expires_soon(key) return redis.call('PTTL', key) < BRIEF_MS end

-- finish ends a script that has made changes for id.
local function finish(id)
  if expires_soon(QUEUE) or expires_soon(LIVING) then
    if redis.call('ZCARD', QUEUE) > 0 then
      keep(RECORD, QUEUE_LIFE)
      keep(QUEUE, QUEUE_LIFE)
      keep(LIVING, QUEUE_LIFE)
    elseif redis.call('ZCARD', HOLDS) == 0 then
      redis.call('DEL', RECORD, LIVING)
    end
  end
  for _, m in ipairs(messages) do -- last, and without effect if an ACL forbids it
    if m[3] ~= id then
      redis.pcall('PUBLISH', m[1], m[2])
    end
  end
end
