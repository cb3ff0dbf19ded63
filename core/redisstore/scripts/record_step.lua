-- Keeps the result of a step of the operation, unless it is there.
--
-- KEYS[1]  the record; records.go has its layout
-- ARGV     owner, name, the step as in the record, maximum of steps
--
-- Returns 1, 0 if the attempt does not own the record, or -1 if there are too many steps.
--
-- It declares no flags, for the reason in begin_operation.lua.

--#include record

local record = redis.call('GET', KEYS[1]) or ''
local r = read_record(record)
if not r or r.owner ~= ARGV[1] or not r.in_flight then
  return 0
end
local name, _, at = '', nil, r.tail + 10
for n = 0, tonumber(ARGV[4]) do
  name, _, at = next_step(record, at)
  if name == ARGV[2] then
    return 1
  elseif not name then
    break
  elseif n + 1 == tonumber(ARGV[4]) then
    return -1
  end
end
local t = redis.call('TIME')
redis.call('SETRANGE', KEYS[1], #record, ARGV[3])
redis.call('SETRANGE', KEYS[1], 142, string.format('%016.0f', t[1] * 1000000 + t[2]))
return 1
