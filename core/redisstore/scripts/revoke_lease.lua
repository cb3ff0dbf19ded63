#!lua flags=allow-oom
-- Ends the hold that has a fence, and pushes that to its holder.
--
-- KEYS     as in lib/lease.lua
-- ARGV     fence, ms for which an idle record is kept, "1" if an earlier call may have been carried
--          out, start of the processes' channels
--
-- Returns 1, or 0 if there is no such hold.

--#include integers lease_record lease_queue lease

S.channels = ARGV[4]

local REVOKED = '3' -- the answer that a revoked hold leaves

S.load(1)
S.expire()
local fence, mine = tonumber(ARGV[1]), S.only
if S.crowd and S.crowd.holds > 0 then
  S.members('[e', '(f', CHUNK, function(member)
    local h = S.hold_of(string.sub(member, 18))
    mine = h and h.first <= fence and fence <= h.last and h or nil
    return mine
  end)
end
if not mine or fence < mine.first or fence > mine.last then
  return S.released and tonumber(S.released.fence) == fence and S.released.answer == REVOKED and ARGV[3] == '1' and 1 or 0
end
S.settle(mine, false)
S.remove_hold(mine)
S.released = {id = mine.id, fence = mine.first, answer = REVOKED}
S.push(mine.proc, 'lost ' .. mine.id .. ' ' .. string.format(INT, mine.first))
S.admit('')
S.save(tonumber(ARGV[2]))
return 1
