-- Grants a lock, or queues a request for it.
--
-- KEYS     as in lib/queue.lua and lib/lock.lua, and
-- KEYS[6]  the id's tombstone
-- KEYS[7]  the largest fence so far
-- ARGV     id, X or S, "1" to queue, lease in µs, lock-delay in µs, number of fences, inbox, the holder's
--          label, the lock's key or nothing if it is secret, push mode: "P" if a message without a
--          receiver proves that the process is gone, or "-"
--
-- Returns "first and last fence" if granted, {"withdrawn"}, or {"queued" or "taken", a holder's
-- label, µs until its lease ends, number of other requests in the queue, place in the queue from 0,
-- µs until the lock may be free}.
--
-- It declares no flags, for the reason in begin_operation.lua: at full memory it still returns the
-- holder.

--#include integers constants

-- The fast paths: a lock without state, and one with a lone hold or an empty queue.

-- mint returns the first and the last fence of a grant, as text, and stores the last. stored is the
-- largest so far, from KEYS[7].
local function mint(stored, now)
  local next = stored and string.find(stored, '^%d+$') and tonumber(stored) + 1 or 1
  local first = math.max(next, now)
  local last = first
  if ARGV[2] ~= 'S' and next <= now then -- otherwise blocks would advance the fences beyond the clock
    last = first + ARGV[6] - 1
  end
  local form = last < 2 ^ 62 and INT or '%.0f' -- a larger number is damaged, and must not look like a fence
  local text = string.format(form, last)
  redis.call('SET', KEYS[7], text, 'PX', string.format(INT, math.ceil((last - now + ARGV[4]) / 1000) + FENCE_LIFE_MS))
  return string.format(form, first), text
end

-- No state: the lock is granted with a lone hold.
if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]) == 0 then
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  local id, inbox, key, whole = ARGV[1], ARGV[7], ARGV[9], ARGV[4] + ARGV[5]
  local first, last = mint(redis.call('GET', KEYS[7]), now)
  redis.call('SET', KEYS[5],
    string.format(INT .. ':%d:%d:', now + whole, #id, #key) .. id .. key .. 'H' .. ARGV[2] .. ':' .. ARGV[4] .. ':' .. ARGV[5] .. ':' ..
    first .. ':' .. last .. string.format(':%d:', #inbox) .. inbox .. ARGV[8],
    'PX', string.format(INT, math.ceil(whole / 1000) + SPARE_MS))
  return first .. ' ' .. last
end

-- Another has a lone hold, and the caller does not wait.
local alone = redis.call('GET', KEYS[5])
if alone and ARGV[3] == '0' and redis.call('EXISTS', KEYS[6]) == 0 then
  local free, size, named, rest = string.match(alone, LONE_HOLD)
  if free and string.sub(rest, 1, tonumber(size)) ~= ARGV[1] then
    local kind, ttl, delay, inbox, last = string.match(rest, '^H([XS]):(%d+):(%d+):%d+:%d+:(%d+):()', 1 + size + named)
    if kind and not (kind == 'S' and ARGV[2] == 'S') then
      local t = redis.call('TIME')
      local now = t[1] * SECOND + t[2]
      free = tonumber(free)
      -- After a step back of the clock, the slow path corrects the end.
      if free > now and free <= now + ttl + delay then
        return {'taken', string.sub(rest, last + inbox), string.format('%.0f', math.max(free - delay - now, 0)), 0, 0,
          string.format('%.0f', free - now)}
      end
    end
  end
end

-- The lock is reserved for the caller, which claims it. A release would have removed the
-- reservation.
local reserved = not alone and redis.call('HGET', KEYS[1], 'h' .. ARGV[1])
if reserved and string.find(reserved, '^[RP]' .. ARGV[2]) then
  local id, inbox, whole = ARGV[1], ARGV[7], ARGV[4] + ARGV[5]
  local free, stored = redis.call('ZSCORE', KEYS[2], id), redis.call('GET', KEYS[7])
  local lasts = string.match(reserved, '^..:(%d+):')
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  if free and lasts and math.min(tonumber(free), now + lasts) > now then
    local first, last = mint(stored, now)
    local text = 'H' .. ARGV[2] .. ':' .. ARGV[4] .. ':' .. ARGV[5] .. ':' .. first .. ':' .. last ..
      string.format(':%d:', #inbox) .. inbox .. ARGV[8]
    if ARGV[9] ~= '' then
      redis.call('HSET', KEYS[1], 'h' .. id, text, 'k', ARGV[9])
    else
      redis.call('HSET', KEYS[1], 'h' .. id, text)
    end
    redis.call('ZADD', KEYS[2], string.format(INT, now + whole), id)
    local ms = math.ceil(whole / 1000) + SPARE_MS
    for i = 1, 2 do
      if redis.call('PTTL', KEYS[i]) < ms then
        redis.call('PEXPIRE', KEYS[i], string.format(INT, ms))
      end
    end
    return first .. ' ' .. last
  end
end

-- The lock is held or reserved exclusively, and the caller is new in the queue.
local held = not alone and not reserved and ARGV[3] == '1' and redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if held and held[1] and redis.call('EXISTS', KEYS[6]) == 0 then
  local id = ARGV[1]
  local fields = redis.call('HMGET', KEYS[1], 'h' .. held[1], 'q' .. id)
  local state, ttl, delay, inbox, last = string.match(fields[1] or '', '^([HRP])X:(%d+):(%d+):%d+:%d+:(%d+):()')
  local back = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  local queued, living = back[1] and redis.call('ZCARD', KEYS[3]) or 0, redis.call('ZCARD', KEYS[4])
  redis.call('GET', KEYS[7]) -- fail before the first write
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  local free = tonumber(held[2])
  -- A step back of the clock goes to the slow path.
  if state and not fields[2] and free > now and free <= now + ttl + delay then
    redis.call('ZADD', KEYS[3], string.format('%.0f', (back[2] or 0) + 1), id)
    if ARGV[9] ~= '' then
      redis.call('HSET', KEYS[1], 'q' .. id, ARGV[2] .. ' ' .. ARGV[10] .. ARGV[7], 'k', ARGV[9])
    else
      redis.call('HSET', KEYS[1], 'q' .. id, ARGV[2] .. ' ' .. ARGV[10] .. ARGV[7])
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
    return {'queued', string.sub(fields[1], last + inbox), string.format('%.0f', math.max(free - delay - now, 0)),
      state == 'H' and queued or queued + 1, queued, string.format('%.0f', free - now)}
  end
end

--#include queue lock

local id, shared, queue = ARGV[1], ARGV[2] == 'S', ARGV[3] == '1'
local ttl, delay, inbox, meta, key = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[7], ARGV[8], ARGV[9]

if redis.call('EXISTS', KEYS[6]) == 1 then
  return {'withdrawn'}
end
local stored = redis.call('GET', KEYS[7])
expand(alone)

local function grant()
  local first, last = mint(stored, now)
  put({
    id = id, reserved = false, shared = shared, ttl = ttl, delay = delay, first = tonumber(first), last = tonumber(last),
    inbox = inbox, meta = meta, free = now + ttl + delay,
  }, key)
  return first .. ' ' .. last
end

local mine = find(id)
if mine and mine.reserved and mine.left > 0 then -- the usual claim
  return grant()
end
if mine and mine.held then -- a repeat
  extend(mine, ttl, delay)
  return num(mine.first) .. ' ' .. num(mine.last)
end
if forget() then
  return grant()
end
local place = redis.call('ZSCORE', QUEUE, id)
redis.call('ZSCORE', LIVING, id)
local h = top()
if not (h and not h.shared) then -- a waiter may be next
  prune()
  pass(id)
  place = redis.call('ZSCORE', QUEUE, id)
  mine = find(id)
  h = top()
end
local others = redis.call('ZCARD', QUEUE)
if mine and mine.reserved and mine.left > 0 or others == 0 and (not h or (h.shared and shared)) then
  local reply = grant()
  finish(id)
  return reply
end

local outcome, rank = 'taken', 0
if queue then
  outcome, rank = 'queued', others
  if place then
    others = others - 1
    rank = redis.call('ZRANK', QUEUE, id) or 0
    live(id, 0)
  else
    enqueue(id, ARGV[2], ARGV[10], inbox, key)
  end
end
if h and h.reserved then
  others = others + 1
end
finish(id)
return {outcome, h and h.meta or '', num(math.max(h and h.left or 0, 0)), others, rank, num(math.max(h and h.free - now or 0, 0))}
