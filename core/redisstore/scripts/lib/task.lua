-- The tasks of a queue. All keys share a hash tag, and so a slot of a Cluster:
--
-- KEYS[1]  when a task is due, or its lease ends: a zset, key -> µs of the server's clock. A task is
--          in it whether it waits or runs, so that it can get lost in neither state.
-- KEYS[2]  the states, a hash: "l" and a key -> a live task, "b" and a key -> a buried one,
--          "r" -> the number of tasks that run
-- KEYS[3]  the payloads, a hash: "l", "f" or "b", and a key -> the payload of the live task, of the
--          one that follows it, or of the buried one
-- KEYS[4]  when a buried task is removed: a zset, key -> µs of the server's clock
-- KEYS[5]  the inboxes that await tasks: a zset, inbox -> end of the registration, µs
--
-- The state of a live task, counted from 1:
--
--    1       "1", the version of the layout
--    2       W waiting, R running
--    3       "1" if an owner has had it
--    4       "1" if it was cancelled while it ran
--    5       outcome of its put, for a repeat
--    6- 27   its ID
--   28- 49   the owner of the attempt that runs, or that ended by "again"; or "-"
--   50- 59   number of attempts
--   60- 75   the last fence
--   76       "1" if another task follows it; then its ID, 22 characters, and when it is due, 16 digits
--   77-      the holder
--
-- The state of a buried task: "1", its ID, attempts and fence as above, when it was buried, 16
-- digits, and the reason.

local Z, S, P, B, W = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local NO_OWNER = string.rep('-', 22)
local LIFE = 732 * 86400000 -- ms; a task is due, and a buried one is kept, for at most half of it

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local began = redis.call('ZRANGE', Z, 0, 0, 'WITHSCORES')[2] -- when the first task was due
local running = 0 -- tasks that run since
local damaged = 0 -- tasks that were buried, since they could not be read

-- parse returns a live task; nil if its state is damaged.
local function parse(key, state)
  local t = {key = key, running = string.sub(state, 2, 2) == 'R', tried = string.sub(state, 3, 3), cancelled = string.sub(state, 4, 4),
    outcome = string.sub(state, 5, 5), id = string.sub(state, 6, 27), owner = string.sub(state, 28, 49)}
  t.attempt, t.fence = tonumber(string.sub(state, 50, 59)), tonumber(string.sub(state, 60, 75))
  t.was = t.running
  local rest = 77
  local follows = string.sub(state, 76, 76)
  if follows == '1' or follows == '2' then
    t.follows_ran = follows == '2'
    t.follows, t.follows_due, rest = string.sub(state, 77, 98), tonumber(string.sub(state, 99, 114)), 115
  end
  t.holder = string.sub(state, rest)
  if string.sub(state, 1, 1) ~= '1' or #state < rest - 1 or not t.attempt or not t.fence or t.follows and not t.follows_due then
    return nil
  end
  return t
end

-- save writes a task, and when it is due or its lease ends.
local function save(t)
  local follows = '0'
  if t.follows then
    follows = (t.follows_ran and '2' or '1') .. t.follows .. string.format('%016.0f', t.follows_due)
  end
  redis.call('HSET', S, 'l' .. t.key, '1' .. (t.running and 'R' or 'W') .. t.tried .. t.cancelled .. t.outcome .. t.id .. t.owner ..
    string.format('%010.0f%016.0f', t.attempt, t.fence) .. follows .. t.holder)
  redis.call('ZADD', Z, string.format(INT, t.at), t.key)
  if t.running ~= t.was then
    running = running + (t.running and 1 or -1)
    t.was = t.running
  end
end

local function drop(t)
  redis.call('ZREM', Z, t.key)
  redis.call('HDEL', S, 'l' .. t.key)
  redis.call('HDEL', P, 'l' .. t.key, 'f' .. t.key)
  if t.was then
    running = running - 1
  end
end

-- follow has the task that follows t take its place. It is due after the end of t. lost is "1" if the owner of t may not know yet
-- that its lease has ended.
local function follow(t, lost)
  redis.call('HSET', P, 'l' .. t.key, redis.call('HGET', P, 'f' .. t.key) or '')
  redis.call('HDEL', P, 'f' .. t.key)
  t.id, t.at, t.follows, t.outcome = t.follows, math.max(t.follows_due, math.min(t.at, now)), nil, '2'
  t.tried = t.follows_ran and '1' or lost
  t.running, t.cancelled, t.owner, t.attempt, t.holder = false, '0', NO_OWNER, 0, ''
  save(t)
end

-- bury keeps a task and its payload for a time in µs.
local function bury(key, id, attempt, fence, reason, kept)
  redis.call('HSET', S, 'b' .. key, '1' .. id .. string.format('%010.0f%016.0f%016.0f', attempt, fence, now) .. reason)
  redis.call('HSET', P, 'b' .. key, redis.call('HGET', P, 'l' .. key) or '')
  redis.call('ZADD', B, string.format(INT, now + kept), key)
end

-- bury_damaged buries a live task that cannot be read.
local function bury_damaged(t)
  bury(t.key, t.id, t.attempt, t.fence, 'damaged', LIFE / 2 * 1000)
  drop(t)
  damaged = damaged + 1
end

local function unearth(key)
  redis.call('ZREM', B, key)
  redis.call('HDEL', S, 'b' .. key)
  redis.call('HDEL', P, 'b' .. key)
end

-- buried returns the state of the buried task of a key and when it is removed; nil if there is none.
local function buried(key)
  local ends = tonumber(redis.call('ZSCORE', B, key) or nil)
  if not ends then
    return nil
  end
  if ends <= now then
    unearth(key)
    return nil
  end
  return redis.call('HGET', S, 'b' .. key) or '', ends
end

-- past returns up to n of the first members of a zset whose scores are not after now.
local function past(set, n)
  return redis.call('ZRANGEBYSCORE', set, '-inf', string.format(INT, now), 'LIMIT', 0, n)
end

-- sweep removes up to a hundred buried tasks that have expired.
local function sweep()
  for _, key in ipairs(past(B, 100)) do
    unearth(key)
  end
end

-- find returns the live task of a key, which waits if its lease has ended; nil if there is none. A
-- damaged one is buried.
local function find(key)
  local state = redis.call('HGET', S, 'l' .. key)
  local at = tonumber(redis.call('ZSCORE', Z, key) or nil)
  if not state and not at then
    return nil
  end
  local t = state and at and parse(key, state)
  if not t then
    local id = state and #state >= 27 and string.sub(state, 6, 27) or NO_OWNER
    bury_damaged({key = key, id = id, attempt = 0, fence = 0, was = state and string.sub(state, 2, 2) == 'R'})
    return nil
  end
  t.at = at
  if t.running and at <= now then -- the lease has ended
    if t.follows then
      follow(t, '1')
    elseif t.cancelled == '1' then
      drop(t)
      return nil
    else
      t.running, t.lost, t.owner, t.holder = false, true, NO_OWNER, ''
    end
  end
  return t
end

-- close is the end of every script that has called find: it counts, extends the life of the keys, and
-- wakes up to four processes if the first task is due earlier than before.
local function close()
  if running ~= 0 then
    redis.call('HINCRBY', S, 'r', string.format('%d', running))
  end
  if redis.call('PTTL', Z) < LIFE - 86400000 then
    for i = 1, 4 do
      redis.call('PEXPIRE', KEYS[i], string.format(INT, LIFE))
    end
  end
  local first = redis.call('ZRANGE', Z, 0, 0, 'WITHSCORES')[2]
  if not first or began and tonumber(first) >= tonumber(began) then
    return
  end
  local inboxes = redis.call('ZREVRANGE', W, 0, 3, 'WITHSCORES')
  for i = 1, #inboxes, 2 do
    redis.call('ZREM', W, inboxes[i])
    if tonumber(inboxes[i + 1]) > now then
      redis.pcall('PUBLISH', inboxes[i], 'due ' .. Z) -- without effect if an ACL forbids it
    end
  end
end

