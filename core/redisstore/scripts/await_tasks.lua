-- Registers an inbox for a push when a task is put that is due earlier, unless one is due.
--
-- KEYS     as in task.lua
-- ARGV     inbox, TTL of the registration in ms
--
-- Returns the time in µs until the first task is due, or -1.
--
-- It declares no flags, for the reason in begin_operation.lua.

--#include integers

local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if first and tonumber(first) <= now then
  return 0
end
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', string.format(INT, now))
redis.call('ZADD', KEYS[5], string.format(INT, now + ARGV[2] * 1000), ARGV[1])
redis.call('PEXPIRE', KEYS[5], ARGV[2])
return first and tonumber(first) - now or -1
