-- Grants a lock, or queues a request for it.
--
-- KEYS     as above, and
-- KEYS[6]  the id's tombstone
-- KEYS[7]  the largest fence so far
-- ARGV     id, X or S, "1" to queue, lease in µs, lock-delay in µs, number of fences, inbox, the holder's
--          label, the lock's key or nothing if it is secret, push mode: "P" if a message without a
--          receiver proves that the process is gone, or "-"
--
-- Returns "first and last fence" if granted, {"withdrawn"}, or {"queued" or "taken", a holder's label, µs until its
-- lease ends, number of other requests in the queue, place in the queue from 0, µs until the lock may be free}.
--
-- It declares no flags, for the reason in begin_operation.lua: at full memory it still returns the holder.

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
