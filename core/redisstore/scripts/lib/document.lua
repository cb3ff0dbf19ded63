-- The documents of a space. Both keys share a hash tag, and so a slot of a Cluster:
--
-- KEYS[1]  the documents, a hash: "d" and a name -> a document, "v" -> the last version of all,
--          16 digits
-- KEYS[2]  when a document expires: a zset, name -> µs of the server's clock
--
-- A document, counted from 1:
--
--    1       "1", the version of the layout
--    2- 17   its version
--   18- 33   what its put named: a version, 0 for any, or -1 for none
--   34- 49   when it was put, µs
--   50-      its data
--
-- A document that is not in both keys, or whose text is damaged, is none.

local H, Z = KEYS[1], KEYS[2]
local HEAD = '^1' .. string.rep('%d', 16) .. '[-%d]' .. string.rep('%d', 31) .. '$'
local LINGER = 3600000 -- ms for which the last version outlives the documents, if the clock steps back

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- find returns a document; nil if there is none.
local function find(name)
  local ends = tonumber(redis.call('ZSCORE', Z, name) or nil)
  if not ends or ends <= now then
    return nil
  end
  local text = redis.call('HGET', H, 'd' .. name)
  local put = text and string.find(string.sub(text, 1, 49), HEAD) and tonumber(string.sub(text, 34, 49))
  return put and {text = text, version = string.sub(text, 2, 17), replaced = string.sub(text, 18, 33), put = put, ends = ends} or nil
end

local function drop(name)
  redis.call('ZREM', Z, name)
  redis.call('HDEL', H, 'd' .. name)
end

-- sweep removes up to a hundred documents that have expired.
local function sweep()
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', Z, '-inf', string.format('%.0f', now), 'LIMIT', 0, 100)) do
    drop(name)
  end
end

-- close is the end of every script that writes: it has the keys expire after the documents.
local function close()
  sweep()
  local last = tonumber(redis.call('ZREVRANGE', Z, 0, 0, 'WITHSCORES')[2] or now)
  local life = string.format('%.0f', math.max(last - now, 0) / 1000 + LINGER)
  redis.call('PEXPIRE', H, life)
  redis.call('PEXPIRE', Z, life)
end
