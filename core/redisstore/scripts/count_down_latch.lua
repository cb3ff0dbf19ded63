-- Adds a participant to a latch.
--
-- KEYS[1]  the participants, a set
-- KEYS[2]  the waiters, a zset: "<count> <inbox>" -> end of the registration, µs of the server's
--          clock
-- ARGV     participant, TTL of the latch in ms, maximum of participants, the message to waiters
--          whose count is reached
--
-- Returns the size of the set, or -1 if it is full.
--
-- It declares no flags, for the reason in begin_operation.lua.

local n = redis.call('SCARD', KEYS[1])
local waiting = redis.call('ZRANGE', KEYS[2], 0, 999, 'WITHSCORES') -- one per process and count
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then
  return n
end
if n >= tonumber(ARGV[3]) then
  return -1
end
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
n = n + 1
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
for i = 1, #waiting, 2 do
  local count, inbox = string.match(waiting[i], '^(%d+) (.*)$')
  if tonumber(waiting[i + 1]) <= now or not count then
    redis.call('ZREM', KEYS[2], waiting[i])
  elseif tonumber(count) <= n then
    redis.call('ZREM', KEYS[2], waiting[i])
    redis.pcall('PUBLISH', inbox, ARGV[4]) -- without effect if an ACL forbids it
  end
end
return n
