-- The texts of a queue. Included after lease_record, before lease.lua, which describes its keys.
--
-- COUNTS are those of a record with the flag CROWD: the time of the last step but heartbeats; when the other keys expire;
-- before when no process has been without heartbeats for too long; when the first hold ends; the weight in use; an upper
-- bound of the waiters' limits; one of the ends of the holds in the items; the time of the last grant that was not taken
-- up; the largest place; and how many holds in the items, waiters and processes there are. A process: when it counts as
-- dead without a heartbeat, and after which time; its last heartbeat; the numbers of its waiters, of its grants that were
-- not taken up yet, and of those that have run out; "P" if it has a subscription, or "-"; its token. A waiter: reserve,
-- place, weight, limit, TTL, when it was queued, number of fences; its process and its label.

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

local GRANT = 2000000 -- how long a pushed grant lasts until it is taken up

-- later returns the later of two tokens.
local function later(a, b)
  return (#a > #b or #a == #b and a > b) and a or b
end
