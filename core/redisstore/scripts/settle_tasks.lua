#!lua flags=allow-oom
-- Ends attempts at tasks of a queue: see store.Delays.
--
-- KEYS     as in task.lua
-- ARGV     for each: key, ID, owner, "done", "again", "uncounted" or "buried", the time in µs until it
--          is due or for which it is kept, the reason, "1" if it may be a repeat
--
-- Returns the number of damaged tasks, and for each 1 if the owner had the task until now, or 0.

--#include integers task

local function settle(key, id, owner, how, after, reason, repeated)
  local t = find(key)
  if not t or t.id ~= id then -- the task is gone: not for this owner, unless this is a repeat
    local b = how == 'buried' and buried(key)
    return b and string.sub(b, 2, 23) == id or how ~= 'buried' and repeated == '1'
  end
  if t.owner ~= owner then
    return false
  end
  if not t.running then
    return how == 'again' or how == 'uncounted' -- a repeat
  end
  if how == 'buried' then
    bury(key, id, t.attempt, t.fence, reason, after)
  end
  if t.follows then
    follow(t, '0')
  elseif (how == 'again' or how == 'uncounted') and t.cancelled == '0' then
    t.running, t.holder, t.at = false, '', now + after
    t.attempt = how == 'uncounted' and t.attempt - 1 or t.attempt
    save(t)
  else
    drop(t)
  end
  return true
end

local owned = {0}
for i = 1, #ARGV, 7 do
  owned[#owned + 1] = settle(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]), ARGV[i + 5], ARGV[i + 6]) and 1 or 0
end
close()
owned[1] = damaged
return owned
