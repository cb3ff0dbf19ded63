-- The common case of acquire_lock.lua, before it and without what it needs: nothing is known of the
-- lock. Keys, arguments and reply are those of acquire_lock.lua.

if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]) == 0 then
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local id, kind, ttl, delay, inbox = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[7]
  local stored = redis.call('GET', KEYS[6])
  local next = stored and string.find(stored, '^%d+$') and tonumber(stored) + 1 or 1
  local first = math.max(next, now)
  local last = first
  if kind ~= 'S' and next <= now then
    last = first + tonumber(ARGV[6]) - 1
  end
  local ms = string.format('%.0f', math.ceil((ttl + delay) / 1000) + 1000)
  redis.call('SET', KEYS[6], string.format('%.0f', last),
    'PX', string.format('%.0f', math.ceil((last - now + ttl) / 1000) + 3600000))
  local text = string.format('H%s:%.0f:%.0f:%.0f:%.0f:%d:', kind, ttl, delay, first, last, #inbox) .. inbox .. ARGV[8]
  if ARGV[9] ~= '' then
    redis.call('HSET', KEYS[1], 'h' .. id, text, 'k', ARGV[9])
  else
    redis.call('HSET', KEYS[1], 'h' .. id, text)
  end
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + ttl + delay), id)
  redis.call('PEXPIRE', KEYS[1], ms)
  redis.call('PEXPIRE', KEYS[2], ms)
  return {'granted', string.format('%.0f %.0f', first, last)}
end

