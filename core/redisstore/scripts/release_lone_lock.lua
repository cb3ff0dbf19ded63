-- The common case of release_lock.lua, before it and without what it needs: the id's is the only hold,
-- and nobody waits. Keys, arguments and reply are those of release_lock.lua, which goes on with what
-- is known of the first two holds.

local lone = redis.call('ZRANGE', KEYS[2], 0, 1, 'WITHSCORES')
if lone[1] == ARGV[1] and not lone[3] and redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[5]) == 0 then
  local text, free = redis.call('HGET', KEYS[1], 'h' .. ARGV[1]), lone[2]
  local ttl, delay = string.match(text or '', '^H[XS]:(%d+):(%d+):')
  if ttl then
    local t = redis.call('TIME')
    local now = t[1] * 1000000 + t[2]
    local held = math.min(tonumber(free), now + ttl + delay) - delay > now
    redis.call('DEL', KEYS[1], KEYS[2])
    redis.call('SET', KEYS[5], held and '1' or '0', 'PX', ARGV[2])
    return held and 1 or 0
  end
end

