#!lua flags=allow-oom
-- Reduces the weight of a hold.
--
-- KEYS     as in lib/lease.lua
-- ARGV     ID, first fence, TTL in µs, weight, process, ms for which an idle record is kept, start
--          of the processes' channels
--
-- Returns 1, or 0 if it is not held.

--#include integers lease_record lease_queue lease

S.channels = ARGV[7]

S.load(1)
S.expire()
local mine = S.hold_of(ARGV[1])
if not mine or mine.first ~= tonumber(ARGV[2]) then
  return 0
end
local weight = math.min(mine.weight, tonumber(ARGV[4]))
S.used, S.freed = S.used - mine.weight + weight, true
mine.weight = weight
S.extend(mine, tonumber(ARGV[3]))
S.admit(ARGV[5])
S.save(tonumber(ARGV[6]))
return 1
