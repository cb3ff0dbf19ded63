-- The common case of beat_lock.lua, before it and without what it needs: it is nobody's turn, and nothing
-- of the request changes. Keys, arguments and reply are those of beat_lock.lua; queue.lua and lock.lua
-- have the layouts.

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
  -- A clock that stepped back, and what is about to expire, are rare.
  if tells == ARGV[2] and ttl and free > now and free <= now + ttl + delay and redis.call('PTTL', KEYS[3]) >= BRIEF_MS then
    redis.call('ZADD', KEYS[4], string.format(INT, now + (rank < FRONT and FRONT_LIFE or LIFE)), id)
    return {'queued', rank, string.format('%.0f', free - now)}
  end
end

