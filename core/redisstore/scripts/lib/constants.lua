-- Constants of the scripts of locks and semaphores, which take no time to include: included first in each of them.
-- Times are in µs, as the server's clock, or in ms if the name ends so.

local SECOND = 1000000
local CLAIM = 2 * SECOND       -- how long a grant is reserved until it is claimed
local FRONT = 3                -- number of requests at the head of the queue that beat every second,
local FRONT_LIFE = 3 * SECOND  -- and are kept for three beats,
local LIFE = 30 * SECOND       -- as the others, which beat every ten
local RISEN = 12 * SECOND      -- a request that has just reached the front, until it beats
local OVERLOOK = 16            -- maximum of requests that are passed over as unreachable
local SPARE_MS = 1000          -- by which a key outlives its content
local QUEUE_LIFE = 90 * SECOND -- TTL of the keys of a queue, and
local BRIEF_MS = QUEUE_LIFE / 2000 -- the rest below which it is extended: half
local FENCE_LIFE_MS = 3600000  -- by which the largest fence outlives its lease, and its lead over the clock
local LONE_HOLD = '^(%d+):(%d+):(%d+):(.*)$' -- layout of a lone hold: see lock.lua
