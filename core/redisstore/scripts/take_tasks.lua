#!lua flags=allow-oom
-- Gives tasks that are due to an owner: see store.Delays.
--
-- KEYS     as in task.lua
-- ARGV     owner, maximum of tasks, lease in µs, holder, the inbox of the process
--
-- Returns the number of damaged tasks; the time in µs until the next task is due, or -1; the number of
-- other inboxes that await tasks; and for each task its key, ID, payload, number of the attempt,
-- fence, and for how many µs it has been due.

--#include integers task

local MOST_BYTES = 262144 -- of payloads: others wait while they are sent

local owner, most, lease, taken, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), 0, 0
local reply = {0, 0, 0}
while taken < most and bytes < MOST_BYTES do
  -- Tasks that were passed over are due no longer, or gone.
  local keys = past(Z, math.min(most - taken, 100))
  if #keys == 0 then
    break
  end
  for _, key in ipairs(keys) do
    if bytes >= MOST_BYTES then
      break
    end
    local t = find(key)
    local payload = t and t.at <= now and redis.call('HGET', P, 'l' .. key)
    if t and t.at <= now and not payload then
      bury_damaged(t)
    elseif payload then
      local late = now - t.at
      t.attempt, t.fence = math.min(t.attempt + 1, 2147483647), math.max(t.fence + 1, now)
      t.running, t.tried, t.owner, t.holder, t.at = true, '1', owner, ARGV[4], now + lease
      save(t)
      taken, bytes = taken + 1, bytes + #payload
      for _, value in ipairs({key, t.id, payload, t.attempt, string.format(INT, t.fence), string.format(INT, late)}) do
        reply[#reply + 1] = value
      end
    end
  end
end

local first = redis.call('ZRANGE', Z, 0, 0, 'WITHSCORES')[2]
reply[1] = damaged
reply[2] = first and math.max(tonumber(first) - now, 0) or -1
reply[3] = redis.call('ZCARD', W) - (redis.call('ZSCORE', W, ARGV[5]) and 1 or 0)
if taken > 0 or damaged > 0 or running ~= 0 then
  close()
end
return reply
