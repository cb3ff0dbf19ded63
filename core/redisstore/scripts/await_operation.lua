-- Registers an inbox for a push when the attempt in flight ends.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  the inboxes, a zset
-- ARGV     inbox, TTL of the registration in ms, maximum of inboxes: others get no push
--
-- Returns the rest of the lease in µs, or 0 if no attempt is in flight.
--
-- It declares no flags, for the reason in begin_operation.lua.

--#include record

local r = read_record(redis.call('GETRANGE', KEYS[1], 0, 161))
if not r or not r.in_flight then
  return 0
end
local t = redis.call('TIME')
local left = math.min(r.ends - t[1] * 1000000 - t[2], r.length)
if left <= 0 then
  return 0
end
if redis.call('ZCARD', KEYS[2]) < tonumber(ARGV[3]) then
  local added = redis.pcall('ZADD', KEYS[2], 0, ARGV[1])
  if type(added) == 'table' then
    return string.find(added.err, 'OOM', 1, true) and left or added -- at full memory, the process gets no push
  elseif r.watched == '0' then
    redis.call('SETRANGE', KEYS[1], 158, '1')
  end
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return left
