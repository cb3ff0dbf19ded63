-- The fast paths of acquire_permit.lua, which run before its libraries are set up: a permit of weight 1, of a
-- semaphore without heavier ones. Keys, arguments and replies are those of acquire_permit.lua; queue.lua and
-- semaphore.lua have the layouts.

if ARGV[2] == '1' and redis.call('EXISTS', KEYS[5], KEYS[6]) == 0 then
  local id, ttl, capacity = ARGV[1], ARGV[7], tonumber(ARGV[3])
  local fields = redis.call('HMGET', KEYS[1], 'h' .. id, 'q' .. id, 'f')
  local free, queued = redis.call('ZSCORE', KEYS[2], id), redis.call('ZCARD', KEYS[3])
  local t = redis.call('TIME')
  local now = t[1] * SECOND + t[2]
  local after = '(' .. string.format(INT, now)
  local used = redis.call('ZCOUNT', KEYS[2], after, '+inf')

  -- The permit is reserved for the caller, which claims it, or there is room and no waiter.
  local lasts = string.match(fields[1] or '', '^[RP] (%d+) 1 ')
  local claims = lasts and free and math.min(tonumber(free), now + lasts) > now
  if claims or not fields[1] and queued == 0 and used < capacity then
    local fence = math.max((tonumber(fields[3] or 0) or 0) + 1, now)
    fence = string.format(fence < 2 ^ 62 and INT or '%.0f', fence) -- a larger number is damaged, and must not look like a fence
    local text = 'H ' .. ttl .. ' 1 ' .. fence .. ' ' .. ARGV[9]
    if ARGV[10] ~= '' then
      redis.call('HSET', KEYS[1], 'h' .. id, text, 'f', fence, 'k', ARGV[10])
    else
      redis.call('HSET', KEYS[1], 'h' .. id, text, 'f', fence)
    end
    redis.call('ZADD', KEYS[2], string.format(INT, now + ttl), id)
    local ms = math.ceil(ttl / 1000) + SPARE_MS
    for i = 1, 2 do
      if redis.call('PTTL', KEYS[i]) < ms then -- longer than the hold, so that the next one can skip this
        redis.call('PEXPIRE', KEYS[i], string.format(INT, math.ceil(ms * 1.5)))
      end
    end
    return fence
  end

  -- There is no room, and the caller is new in an unlimited queue and does not barge.
  if ARGV[4] == '1' and ARGV[5] == 'F' and ARGV[6] == '0' and not fields[1] and not fields[2] and fields[3] and used >= capacity then
    local back, living = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES'), redis.call('ZCARD', KEYS[4])
    local first = redis.call('ZRANGEBYSCORE', KEYS[2], after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local text = '1:' .. ARGV[3] .. ':F ' .. ARGV[11] .. ARGV[8]
    if first[2] - now > tonumber(ttl) then
      first[2] = now + ttl -- the clock may have stepped back; a heartbeat corrects the end
    end
    redis.call('ZADD', KEYS[3], string.format('%.0f', (back[2] or 0) + 1), id)
    if ARGV[10] ~= '' then
      redis.call('HSET', KEYS[1], 'q' .. id, text, 'k', ARGV[10])
    else
      redis.call('HSET', KEYS[1], 'q' .. id, text)
    end
    redis.call('ZADD', KEYS[4], string.format(INT, now + FRONT_LIFE), id)
    if queued == 0 or living == 0 or redis.call('PTTL', KEYS[3]) < BRIEF_MS or redis.call('PTTL', KEYS[4]) < BRIEF_MS then
      local ms = QUEUE_LIFE / 1000 + SPARE_MS
      if redis.call('PTTL', KEYS[1]) < ms then
        redis.call('PEXPIRE', KEYS[1], ms)
      end
      redis.call('PEXPIRE', KEYS[3], ms)
      redis.call('PEXPIRE', KEYS[4], ms)
    end
    return {'queued', used, queued, string.format('%.0f', first[2] - now), queued}
  end
end

