#!lua flags=allow-oom
-- Heartbeats of a process for many keys. They cover the usual case, and leave other keys to
-- beat_lease.lua.
--
-- KEYS     the first and the fourth of lib/lease.lua, for each key
-- ARGV     process, its token, "P" if it has a subscription or "-", µs until it counts as dead
--          without a heartbeat
--
-- Returns for each key the number of the process's waiters, and µs until the first hold ends; or -1
-- and 0 if the key needs beat_lease.lua:
--   - a hold or a process has run out;
--   - the expiry of the keys is to be extended;
--   - the process is unknown, or has no waiters;
--   - there may be room for a waiter.
--
-- The next step of another kind finds out if other keys of the state were lost.

--#include integers lease_record lease_queue

local call, match, tonumber = redis.call, string.match, tonumber -- a local is found sooner than a global
local me, token, pushed, lasts = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local alive = string.format(TIMES, now + lasts, lasts, now)

-- beat returns the reply, or nothing if the key needs more. If a time of the state is after now,
-- the clock stepped back.
local function beat(record, processes)
  local size, at = match(record, '^L[23ab]%d+:(%d+):()')
  local seen, kept, stale, soonest, used, limit = match(record, '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):', at and at + size)
  if not limit or now < tonumber(seen) or now >= tonumber(stale) or kept - now < KEPT or
    tonumber(used) < tonumber(limit) then
    return
  end
  local left = soonest - now
  if left <= 0 then
    return
  end
  local last, counts, places, known =
    match(call('HGET', processes, me) or '', '^%d+:%d+:(%d+):((%d+):%d+:%d+:)[P-](%d+)$')
  if not places or places == '0' or tonumber(last) > now then
    return
  end
  call('HSET', processes, me, alive .. counts .. pushed .. later(known, token))
  return tonumber(places), left
end

local reply = {}
for i = 1, #KEYS, 2 do
  local places, left = beat(call('GET', KEYS[i]) or '', KEYS[i + 1])
  reply[i], reply[i + 1] = places or -1, left or 0
end
return reply
