#!lua flags=allow-oom
-- Heartbeats of a process for the keys that it waits for. They end holds that have run out, and
-- create nothing.
--
-- KEYS     as in lib/lease.lua, for each key
-- ARGV     as in beat_leases.lua; start of the processes' channels; for each key ms for which an
--          idle record is kept, and "1" to remove the process's waiters or "0"
--
-- Returns for each key the number of the process's waiters, and µs until the first hold ends.

--#include integers lease_record lease_queue lease

S.channels = ARGV[5]

local me, reply = ARGV[1], {}
for i = 1, #KEYS / 5 do
  S.load(5 * i - 4)
  local p = S.crowd and S.heartbeat(me, ARGV[2], ARGV[3] == 'P', tonumber(ARGV[4]), false)
  local waited = S.crowd ~= nil
  S.expire()
  if S.crowd then
    if ARGV[5 + 2 * i] == '1' and p then
      S.drop({[me] = true})
    end
    if S.crowd.stale <= S.now then
      S.prune(me, true)
    end
    S.freed = true
    S.admit(me)
  end
  if waited or S.freed then
    S.save(tonumber(ARGV[4 + 2 * i]))
  end
  reply[2 * i - 1] = p and p.places or 0
  -- 1 µs if more holds have run out.
  reply[2 * i] = S.only and S.only.ends - S.now or S.crowd and S.crowd.holds > 0 and math.max(S.crowd.soonest - S.now, 1) or 0
end
return reply
