#!lua flags=no-writes
-- Returns the holders and the waiters of a key.
--
-- KEYS     as in lib/lease.lua
-- ARGV     how many of each to list
--
-- Returns {the key or nothing, weight in use, number of waiters, number of listed holders; for each
-- listed holder first fence, last fence, weight, label, µs since it was granted, µs until it ends;
-- for each listed waiter weight, reserve, label, µs since it joined the queue}.

--#include integers lease_record lease_queue lease

S.load(1)
local reply, most = {S.key, 0, S.crowd and S.crowd.places or 0, 0}, tonumber(ARGV[1])
local function list(h)
  local left = math.min(h.ends, S.now + h.span) - S.now
  if left <= 0 then
    S.used = S.used - h.weight
    return
  elseif reply[4] == most then
    return
  end
  reply[4] = reply[4] + 1
  for _, field in ipairs({string.format(INT, h.first), string.format(INT, h.last), string.format('%.0f', h.weight), h.label,
    string.format('%.0f', math.max(S.now - h.since, 0)), string.format('%.0f', left)}) do
    reply[#reply + 1] = field
  end
end
if S.only then
  list(S.only)
elseif S.crowd and S.crowd.holds > 0 then
  S.members('[e', '(f', most, function(member)
    local h = S.hold_of(string.sub(member, 18))
    if h then
      list(h)
    end
    return reply[4] == most
  end)
end
reply[2] = string.format('%.0f', S.used)
if S.crowd and S.crowd.places > 0 then
  local left = most
  S.members('[q', '(r', most, function(member)
    local reserve, _, _, id = S.split(member)
    local w = S.waiter_of(id)
    if w then
      for _, field in ipairs({string.format('%.0f', w.weight), string.format('%.0f', reserve), w.label,
        string.format('%.0f', math.max(S.now - w.since, 0))}) do
        reply[#reply + 1] = field
      end
    end
    left = left - 1
    return left == 0
  end)
end
return reply
