#!lua flags=allow-oom
-- Ends a permit or withdraws a request, and refuses a delayed acquire of its id.
--
-- KEYS     as above
-- ARGV     id, TTL of KEYS[5] in ms
--
-- Returns 1 if the id held a permit, or 0.

local id = ARGV[1]
local mine, waits = find(id), redis.call('ZCARD', QUEUE)
redis.call('ZCARD', LIVING)
redis.call('ZCARD', HEAVY)
local first = redis.call('ZRANGE', HOLDS, 0, 1, 'WITHSCORES')
local before = redis.call('GET', KEYS[5])
if before then -- a repeat
  return before == '1' and 1 or 0
end

local held = mine and mine.held
if mine then
  remove(mine) -- a write that needs no memory; servers before 7 then allow others
else
  dequeue(id)
end
redis.call('SET', KEYS[5], held and '1' or '0', 'PX', ARGV[2])
local empty = not first[1] or first[1] == id and not first[3]
if waits > 0 then
  prune()
  pass(id)
  finish(id)
elseif empty then
  redis.call('DEL', RECORD, LIVING)
elseif tonumber(first[2]) <= now then
  prune()
end
return held and 1 or 0
