-- The record of the leases of a key: a string, KEYS[1]. Included after integers.
--
-- It is text: "L", its flags as a hexadecimal digit, the largest fence so far, and the length of
-- the key's name, both followed by a colon; then the name, or nothing if it is secret or not
-- needed. Then follow the parts whose flags are set:
--   - CROWD: the counts of the other keys, see lease_queue.lua
--   - HELD: the only hold
--   - RELEASED: the last release of a key without holds: the answer to a repeat ("1" if it was
--     held, "0" if not, "3" if it was revoked), its first fence, both followed by a colon, and its
--     ID
--
-- LATE is set if there may be tombstones. Times are µs of the server's clock.
--
-- A hold is text: its ID (22 characters) and its process (16); then, each followed by a colon, its
-- first and its last fence, when it ends, when it was granted, the time after which it ends without
-- a renewal, its weight, its place, with a minus until it is taken up, and the length of its label;
-- and the label.

local HELD, CROWD, RELEASED, LATE = 1, 2, 4, 8
local HEAD = '^L(%x)(%d+):(%d+):()'
local HOLD = '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%-?%d+):(%d+):()' -- the part after the process
local NAMES = 22 + 16
-- The keys of a crowd outlive their use by this, in µs, so that few writes extend them.
local KEPT = 45000000
local PAIR, QUAD = INT .. ' ' .. INT, INT .. ':' .. INT .. ':' .. INT .. ':' .. INT

-- fences returns the first and the last fence of a grant. If the fences are ahead of the clock, a
-- grant gets only one: several would advance them further if they were used up faster than time
-- passes. A damaged number is no fence.
local function fences(largest, now, wanted)
  local first = largest + 1
  if first > now and first <= 2 ^ 53 then
    return first, first
  end
  return now, now + wanted - 1
end
