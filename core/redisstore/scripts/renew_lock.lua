#!lua flags=allow-oom
-- Extends a hold that has not expired.
--
-- KEYS     as in lib/queue.lua and lib/lock.lua
-- ARGV     id, lease in µs, lock-delay in µs
--
-- Returns 1, or 0 if the id does not hold the lock.

--#include integers constants

-- The fast path: a lone hold.

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

--#include queue lock

local mine = find(ARGV[1])
if not mine or not mine.held then
  return 0
end
extend(mine, tonumber(ARGV[2]), tonumber(ARGV[3]))
return 1
