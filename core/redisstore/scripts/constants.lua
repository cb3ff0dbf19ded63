-- What the scripts of locks and semaphores share and what costs no time to share: it stands before everything
-- else in each of them. Times are in µs, as those of the server's clock, or in ms where that is said.

local SECOND = 1000000
local CLAIM = 2 * SECOND       -- for how long a lock is reserved
local FRONT = 3                -- so many at the head of the queue beat every second,
local FRONT_LIFE = 3 * SECOND  -- and live for three beats,
local LIFE = 30 * SECOND       -- as do the others, who beat every ten
local RISEN = 12 * SECOND      -- one of the others who comes to the front, until it beats
local OVERLOOK = 16            -- at most so many whose processes seem to be gone
local SPARE_MS = 1000          -- a key outlives what it has
local QUEUE_LIFE = 90 * SECOND -- for how long the keys of a queue are kept, and
local BRIEF_MS = QUEUE_LIFE / 2000 -- what is too short for them: half of it
local FENCE_LIFE_MS = 3600000  -- by how much the largest fence outlives its lease, and its lead over the clock
local LONE_HOLD = '^(%d+):(%d+):(%d+):(.*)$' -- what is in a lone hold: see lock.lua
