-- Puts a document: see store.Documents.
--
-- KEYS     as in document.lua
-- ARGV     name, data, TTL in µs, the version that it may replace, 16 digits (0: any, -1: none),
--          maximum of documents in the space
--
-- Returns 1 if the document was put, or is there since an earlier put like this, 0 if the document
-- has another version, -1 if the space is full; and the version, 0 if there is no document.
--
-- It declares no flags, for the reason in begin_operation.lua.

--#include document

local ANY, NONE = '0000000000000000', '-000000000000001'

local name, data, may = ARGV[1], ARGV[2], ARGV[4]
local old = find(name)
if old then
  local same = may ~= ANY and string.sub(old.text, 50) == data
  if may == old.version and same then
    redis.call('ZADD', Z, string.format('%.0f', now + tonumber(ARGV[3])), name)
    close()
    return {1, old.version}
  end
  if may ~= ANY and may ~= old.version then
    return {may == old.replaced and same and 1 or 0, old.version}
  end
elseif may ~= ANY and may ~= NONE then
  return {0, '0'}
elseif redis.call('ZCARD', Z) >= tonumber(ARGV[5]) and not redis.call('ZSCORE', Z, name) then
  sweep()
  if redis.call('ZCARD', Z) >= tonumber(ARGV[5]) then
    return {-1, '0'}
  end
end

local version = string.format('%016.0f', math.max((tonumber(redis.call('HGET', H, 'v') or nil) or 0) + 1, now))
redis.call('HSET', H, 'v', version, 'd' .. name, '1' .. version .. may .. string.format('%016.0f', now) .. data)
redis.call('ZADD', Z, string.format('%.0f', now + tonumber(ARGV[3])), name)
close()
return {1, version}
