-- How the parts of a queue are written as text. Included after lease_record, before lease.lua,
-- which describes the keys that have them.
--
-- COUNTS are the counts of a record with the flag CROWD:
--   - seen: the time of the last step, except for those of beat_leases.lua
--   - kept: when the other keys expire
--   - stale: until then, no process is without heartbeats for too long
--   - soonest: when the first hold ends
--   - used: the weight in use
--   - limit: an upper bound of the waiters' limits
--   - longest: an upper bound of the ends of the holds in the items
--   - cutoff: the time of the last grant that was not taken up
--   - number: the largest place
--   - holds, places, processes: the numbers of holds in the items, of waiters and of processes
--
-- A process:
--   - till, span: when it counts as dead unless a heartbeat comes, and how long after a heartbeat
--     that is
--   - beat: its last heartbeat
--   - places, grants, lapses: the numbers of its waiters, of its grants that were not taken up yet,
--     and of grants that have run out
--   - "P" if it has a subscription, or "-"; and its token
--
-- A waiter: reserve, place, weight, limit, TTL, when it was queued, number of fences; its process
-- and its label.

local TIMES = INT .. ':' .. INT .. ':' .. INT .. ':'
local COUNTS = '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):()'
local COUNTED = TIMES .. INT .. ':%d:%d:' .. TIMES .. '%d:%d:%d:'
local PROCESS, PROCESSED = '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):([P-])(%d+)$', TIMES .. '%d:%d:%d:'
local WAITER = '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(.*)$'
local WAITING = '%d:' .. INT .. ':%d:%d:' .. INT .. ':' .. INT .. ':%d:'
local WIDE = INT == '%d' and '%016d' or '%016.0f'
local END = 'e' .. WIDE -- the start of a hold's member of the order
local PLACE = 'q%08x' .. WIDE -- the start of a waiter's member of the order
local PUSHED = ' ' .. PAIR .. ' ' .. PAIR .. ' '

local GRANT = 2000000 -- how long a pushed grant lasts until it is taken up, in µs

-- later returns the later of two tokens.
local function later(a, b)
  return (#a > #b or #a == #b and a > b) and a or b
end
