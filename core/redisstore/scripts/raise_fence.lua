#!lua
-- Makes the next fence of a key larger than a number.
--
-- KEYS     as in lib/lease.lua
-- ARGV     the number, ms for which an idle record is kept
--
-- Returns 1.

--#include integers lease_record lease_queue lease

S.load(1)
S.largest = math.max(S.largest, tonumber(ARGV[1]))
S.save(tonumber(ARGV[2]))
return 1
