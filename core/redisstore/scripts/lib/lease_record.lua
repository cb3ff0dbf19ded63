-- The record of the leases of a key: a string, KEYS[1]. Included after integers.
--
-- It is text: "L", its flags as a hexadecimal digit, the largest fence so far, and the length of the key's name, both
-- followed by a colon; then the name, or nothing if it is secret or not needed. Then follow the parts whose flags are set:
-- CROWD, the counts of the other keys, see lease_queue.lua; HELD, the only hold; RELEASED, the last release of a key
-- without holds: whether it was held, a colon, its first fence, a colon, and its ID. LATE says that there may be
-- tombstones. Times are µs of the server's clock.
--
-- A hold is text, too: its ID (22 characters), its process (16), its first and its last fence, when it ends and when it
-- was granted, the time after which it ends without a renewal, its weight, its place, with a minus until it is taken up,
-- and the length of its label, each followed by a colon; and the label.

local HELD, CROWD, RELEASED, LATE = 1, 2, 4, 8
local HEAD = '^L(%x)(%d+):(%d+):()'
local HOLD = '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%-?%d+):(%d+):()' -- what follows the process
local NAMES = 22 + 16
local KEPT = 45000000 -- by how much the keys of a crowd outlive their use, so that few writes extend them
local PAIR, QUAD = INT .. ' ' .. INT, INT .. ':' .. INT .. ':' .. INT .. ':' .. INT

-- fences returns the first and the last fence of a grant. Several would advance the fences beyond the clock if they were
-- used up faster than time passes. A damaged number is no fence.
local function fences(largest, now, wanted)
  local first = largest + 1
  if first > now and first <= 2 ^ 53 then
    return first, first
  end
  return now, now + wanted - 1
end
