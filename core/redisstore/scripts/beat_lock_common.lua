-- The fast path of beat_lock.lua, which runs before its libraries are set up: no waiter can be next, and the request
-- does not change. Keys, arguments and reply are those of beat_lock.lua; queue.lua and lock.lua have the layouts.

local id = ARGV[1]
local rank = redis.call('ZRANK', KEYS[3], id)
local held = rank and redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if held and held[1] and redis.call('EXISTS', KEYS[6]) == 0 then
  local fields = redis.call('HMGET', KEYS[1], 'q' .. id, 'h' .. held[1])
  local tells = string.match(fields[1] or '', '^%S+ ([P-])')
  local ttl, delay = string.match(fields[2] or '', '^HX:(%d+):(%d+):')
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  local free = tonumber(held[2])
  -- A step back of the clock, and keys that expire soon, go to the slow path.
  if tells == ARGV[2] and ttl and free > now and free <= now + ttl + delay and redis.call('PTTL', KEYS[3]) >= BRIEF_MS then
    redis.call('ZADD', KEYS[4], string.format(INT, now + (rank < FRONT and FRONT_LIFE or LIFE)), id)
    return {'queued', rank, string.format('%.0f', free - now)}
  end
end

