-- The common cases of release_lock.lua, before it and without what it needs. Keys, arguments and reply are those
-- of release_lock.lua; queue.lua and lock.lua have the layouts.

-- The id's is the only hold, and nobody waits.
local alone = redis.call('GET', KEYS[5])
if alone then
  local free, size, named, rest = string.match(alone, LONE_HOLD)
  if free and string.sub(rest, 1, tonumber(size)) == ARGV[1] then
    local ttl, delay = string.match(rest, '^H[XS]:(%d+):(%d+):', 1 + size + named)
    if ttl then
      local t = redis.call('TIME')
      local now = t[1] * SECOND + t[2]
      local held = math.min(tonumber(free), now + ttl + delay) - delay > now
      redis.call('DEL', KEYS[5]) -- first, since it needs no room: servers before 7 then allow what does
      redis.call('SET', KEYS[6], held and '1' or '0', 'PX', ARGV[2])
      return held and 1 or 0
    end
  end
end

-- The id's is the only hold, and nobody waits any more, or a request for another one is the first of a short
-- queue: the lock is reserved for it.
local holds = not alone and redis.call('ZRANGE', KEYS[2], 0, 1, 'WITHSCORES')
if holds and holds[1] == ARGV[1] and not holds[3] and not redis.call('GET', KEYS[6]) then
  local mine, queue = redis.call('HGET', KEYS[1], 'h' .. ARGV[1]), redis.call('ZRANGE', KEYS[3], 0, 3)
  local ttl, delay = string.match(mine or '', '^H[XS]:(%d+):(%d+):')
  local id = queue[1]
  local asks, alive = id and redis.call('HGET', KEYS[1], 'q' .. id), redis.call('ZSCORE', KEYS[4], id or '')
  local tells, inbox = string.match(asks or '', '^X ([P-])(.*)$')
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  local free = math.min(tonumber(holds[2]), now + (ttl or 0) + (delay or 0))
  local held = free - (delay or 0) > now
  if ttl and not id then
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[4]) -- first, as above
    redis.call('SET', KEYS[6], held and '1' or '0', 'PX', ARGV[2])
    return held and 1 or 0
  end
  -- What the record and the holds live for was set for this hold: longer than for the next.
  if ttl and inbox and id ~= ARGV[1] and not queue[4] and alive and tonumber(alive) > now and free - now > CLAIM then
    local message = 'grant ' .. id
    if tells == '-' or redis.pcall('PUBLISH', inbox, message) ~= 0 then
      redis.call('ZREM', KEYS[3], id) -- first, as above
      redis.call('ZREM', KEYS[4], id)
      -- What is new before what goes: a key that has nothing for a moment forgets when it expires.
      redis.call('HSET', KEYS[1], 'h' .. id, (tells == 'P' and 'P' or 'R') .. 'X:' .. CLAIM .. ':0:0:0:' .. string.format('%d:', #inbox) .. inbox)
      redis.call('HDEL', KEYS[1], 'h' .. ARGV[1], 'q' .. id)
      redis.call('ZADD', KEYS[2], string.format(INT, now + CLAIM), id)
      redis.call('ZREM', KEYS[2], ARGV[1])
      redis.call('SET', KEYS[6], held and '1' or '0', 'PX', ARGV[2])
      if tells == '-' then
        redis.pcall('PUBLISH', inbox, message) -- last, and in vain if an ACL forbids it
      end
      return held and 1 or 0
    end
  end
end

