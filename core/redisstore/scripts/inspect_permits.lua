#!lua flags=no-writes
-- Returns the use of a semaphore.
--
-- KEYS     as in lib/queue.lua
-- ARGV     maximum of permits to list
--
-- Returns {the semaphore's key or nothing, requests in the queue, weight in use, fence 1, weight 1,
-- µs until it expires, its label, fence 2, ...}.

--#include integers constants queue semaphore

local reply = {redis.call('HGET', RECORD, 'k') or '', redis.call('ZCOUNT', LIVING, '(' .. num(now), '+inf'), inuse()}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', HOLDS, '(' .. num(now), '+inf', 'LIMIT', 0, ARGV[1])) do
  local h = find(id)
  if h and h.held then
    for _, field in ipairs({num(h.fence), num(h.weight), num(h.left), h.meta}) do
      reply[#reply + 1] = field
    end
  end
end
return reply
