-- The common cases of acquire_lock.lua, before it and without what it needs. Keys, arguments and replies are
-- those of acquire_lock.lua; lock.lua says what a hold, and a lone one, look like.

-- Nothing is known of the lock: it is granted, and the hold is a lone one.
if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]) == 0 then
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local id, kind, inbox, key, ttl, whole = ARGV[1], ARGV[2], ARGV[7], ARGV[9], tonumber(ARGV[4]), ARGV[4] + ARGV[5]
  local stored = redis.call('GET', KEYS[7])
  local next = stored and string.find(stored, '^%d+$') and tonumber(stored) + 1 or 1
  local first = math.max(next, now)
  local last = first
  if kind ~= 'S' and next <= now then
    last = first + ARGV[6] - 1
  end
  -- Each number is written once, since that is what takes the longest here.
  local lead = last - now
  first, last = string.format('%.0f', first), string.format('%.0f', last)
  redis.call('SET', KEYS[7], last, 'PX', string.format('%.0f', math.ceil((lead + ttl) / 1000) + 3600000))
  redis.call('SET', KEYS[5],
    string.format('%.0f:%d:%d:', now + whole, #id, #key) .. id .. key .. 'H' .. kind .. ':' .. ARGV[4] .. ':' .. ARGV[5] .. ':' ..
    first .. ':' .. last .. string.format(':%d:', #inbox) .. inbox .. ARGV[8],
    'PX', string.format('%.0f', math.ceil(whole / 1000) + 1000))
  return first .. ' ' .. last
end

-- Somebody else has it alone, and the caller does not want to wait.
local alone = redis.call('GET', KEYS[5])
if alone and ARGV[3] == '0' and redis.call('EXISTS', KEYS[6]) == 0 then
  local free, size, named, rest = string.match(alone, '^(%d+):(%d+):(%d+):(.*)$')
  if free and string.sub(rest, 1, tonumber(size)) ~= ARGV[1] then
    local kind, ttl, delay, inbox, last = string.match(rest, '^H([XS]):(%d+):(%d+):%d+:%d+:(%d+):()', 1 + size + named)
    if kind and not (kind == 'S' and ARGV[2] == 'S') then
      local t = redis.call('TIME')
      local now = t[1] * 1000000 + t[2]
      free = math.min(tonumber(free), now + ttl + delay)
      if free > now then
        return {'taken', string.sub(rest, last + inbox), string.format('%.0f', math.max(free - delay - now, 0)), 0, 0,
          string.format('%.0f', free - now)}
      end
    end
  end
end

-- It is reserved for the caller, who claims it, and has not been released, which would have ended that.
local reserved = not alone and redis.call('HGET', KEYS[1], 'h' .. ARGV[1])
if reserved and string.find(reserved, '^[RP]' .. ARGV[2]) then
  local id, kind, inbox, ttl, whole = ARGV[1], ARGV[2], ARGV[7], tonumber(ARGV[4]), ARGV[4] + ARGV[5]
  local free, stored = redis.call('ZSCORE', KEYS[2], id), redis.call('GET', KEYS[7])
  local lasts = string.match(reserved, '^..:(%d+):')
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  if free and lasts and math.min(tonumber(free), now + lasts) > now then
    local next = stored and string.find(stored, '^%d+$') and tonumber(stored) + 1 or 1
    local first = math.max(next, now)
    local last = first
    if kind ~= 'S' and next <= now then
      last = first + ARGV[6] - 1
    end
    local lead = last - now
    first, last = string.format('%.0f', first), string.format('%.0f', last)
    redis.call('SET', KEYS[7], last, 'PX', string.format('%.0f', math.ceil((lead + ttl) / 1000) + 3600000))
    local text = 'H' .. kind .. ':' .. ARGV[4] .. ':' .. ARGV[5] .. ':' .. first .. ':' .. last ..
      string.format(':%d:', #inbox) .. inbox .. ARGV[8]
    if ARGV[9] ~= '' then
      redis.call('HSET', KEYS[1], 'h' .. id, text, 'k', ARGV[9])
    else
      redis.call('HSET', KEYS[1], 'h' .. id, text)
    end
    redis.call('ZADD', KEYS[2], string.format('%.0f', now + whole), id)
    local ms = math.ceil(whole / 1000) + 1000
    for i = 1, 2 do
      if redis.call('PTTL', KEYS[i]) < ms then
        redis.call('PEXPIRE', KEYS[i], string.format('%.0f', ms))
      end
    end
    return first .. ' ' .. last
  end
end

-- Somebody has it exclusively, or is about to, and the caller is new in the queue.
local held = not alone and not reserved and ARGV[3] == '1' and redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if held and held[1] and redis.call('EXISTS', KEYS[6]) == 0 then
  local id = ARGV[1]
  local fields = redis.call('HMGET', KEYS[1], 'h' .. held[1], 'q' .. id)
  local state, ttl, delay, inbox, last = string.match(fields[1] or '', '^([HRP])X:(%d+):(%d+):%d+:%d+:(%d+):()')
  local back = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  local queued, living = back[1] and redis.call('ZCARD', KEYS[3]) or 0, redis.call('ZCARD', KEYS[4])
  redis.call('GET', KEYS[7]) -- it fails now if it has to
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local free = tonumber(held[2])
  -- A clock that stepped back is rare.
  if state and not fields[2] and free > now and free <= now + ttl + delay then
    redis.call('ZADD', KEYS[3], string.format('%.0f', (back[2] or 0) + 1), id)
    if ARGV[9] ~= '' then
      redis.call('HSET', KEYS[1], 'q' .. id, ARGV[2] .. ' ' .. ARGV[10] .. ARGV[7], 'k', ARGV[9])
    else
      redis.call('HSET', KEYS[1], 'q' .. id, ARGV[2] .. ' ' .. ARGV[10] .. ARGV[7])
    end
    redis.call('ZADD', KEYS[4], string.format('%.0f', now + 3000000), id)
    if queued == 0 or living == 0 or redis.call('PTTL', KEYS[3]) < 45000 or redis.call('PTTL', KEYS[4]) < 45000 then
      if redis.call('PTTL', KEYS[1]) < 91000 then
        redis.call('PEXPIRE', KEYS[1], 91000)
      end
      redis.call('PEXPIRE', KEYS[3], 91000)
      redis.call('PEXPIRE', KEYS[4], 91000)
    end
    return {'queued', string.sub(fields[1], last + inbox), string.format('%.0f', math.max(free - delay - now, 0)),
      state == 'H' and queued or queued + 1, queued, string.format('%.0f', free - now)}
  end
end

