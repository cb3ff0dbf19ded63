-- The fast path of renew_lock.lua, which runs before its libraries are set up: a lone hold. Keys, arguments and reply
-- are those of renew_lock.lua; lock.lua has the layout.

local alone = redis.call('GET', KEYS[5])
if alone then
  local free, size, named, rest = string.match(alone, LONE_HOLD)
  if not free or string.sub(rest, 1, tonumber(size)) ~= ARGV[1] then
    return 0
  end
  local kind, ttl, delay, first, last, tail = string.match(rest, '^H([XS]):(%d+):(%d+):(%d+):(%d+):(.*)$', 1 + size + named)
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  if not kind or math.min(tonumber(free), now + ttl + delay) - delay <= now then
    return 0
  end
  local whole = ARGV[2] + ARGV[3]
  redis.call('SET', KEYS[5],
    string.format(INT, now + whole) .. ':' .. size .. ':' .. named .. ':' .. string.sub(rest, 1, size + named) ..
    'H' .. kind .. ':' .. ARGV[2] .. ':' .. ARGV[3] .. ':' .. first .. ':' .. last .. ':' .. tail,
    'PX', string.format(INT, math.ceil(whole / 1000) + SPARE_MS))
  return 1
end

