#!lua flags=allow-oom
-- Ends a hold or withdraws a request, and refuses a delayed acquire of its id.
--
-- KEYS     as above, and
-- KEYS[6]  the id's tombstone: "1" if it held the lock
-- ARGV     id, TTL of KEYS[6] in ms
--
-- Returns 1 if the id held the lock, or 0.

local id = ARGV[1]
local before = redis.call('GET', KEYS[6])
if before then -- a repeat
  return before == '1' and 1 or 0
end
if alone then -- another request's
  expand(alone)
  holds = redis.call('ZRANGE', HOLDS, 0, 1, 'WITHSCORES')
end
local mine, waiting = find(id, holds[1] == id and holds[2]), redis.call('ZCARD', QUEUE)
redis.call('ZSCORE', LIVING, id)

local held = mine and mine.held
local last = mine and waiting == 0 and not holds[3]
if last then
  redis.call('DEL', RECORD, HOLDS, LIVING)
else
  remove(id) -- a write that needs no memory; servers before 7 then allow others
  if not mine then
    dequeue(id)
  end
end
redis.call('SET', KEYS[6], held and '1' or '0', 'PX', ARGV[2])
if not last then
  forget()
  pass(id)
  finish(id)
end
return held and 1 or 0
