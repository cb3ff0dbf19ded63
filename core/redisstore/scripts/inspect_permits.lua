#!lua flags=no-writes
-- Says what is in use of a semaphore.
--
-- KEYS     as above
-- ARGV     how many permits to list
--
-- Returns {the semaphore's key or nothing, requests in the queue, weights in use, fence 1, weight 1, µs
-- until it expires, what it says of itself, fence 2, ...}.

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
