-- Reads tasks of a queue: see store.TaskKeeper. It ends attempts whose leases have ended, and removes
-- buried tasks that have expired.
--
-- KEYS     as in task.lua
-- ARGV     "key" and a key; or "list", "l" or "b" for live or buried tasks, and a cursor; or "count"
--
-- Returns the number of damaged tasks, the next cursor, and for each task its key, ID, state (W, R
-- or B), size of the payload, attempts, fence, "1" if another follows, the holder or the reason,
-- and two times in µs: of a live task until it is due or its lease ends, and 0; of a buried one
-- until it is removed, and since it was buried.
--
-- For "count" it returns 0, the numbers of waiting, running and buried tasks, and for how many µs
-- the first has been due.

--#include integers task

local reply = {0, '0'}

local function live(key)
  local t = find(key)
  if t then
    for _, value in ipairs({key, t.id, t.running and 'R' or 'W', redis.call('HSTRLEN', P, 'l' .. key), t.attempt,
      string.format(INT, t.fence), t.follows and '1' or '0', t.holder, string.format('%.0f', t.at - now), '0'}) do
      reply[#reply + 1] = value
    end
  end
  return t
end

local function dead(key)
  local b, ends = buried(key)
  if b then
    for _, value in ipairs({key, string.sub(b, 2, 23), 'B', redis.call('HSTRLEN', P, 'b' .. key), tonumber(string.sub(b, 24, 33)) or 0,
      string.format(INT, tonumber(string.sub(b, 34, 49)) or 0), '0', string.sub(b, 66), string.format('%.0f', ends - now),
      string.format('%.0f', now - (tonumber(string.sub(b, 50, 65)) or now))}) do
      reply[#reply + 1] = value
    end
  end
end

if ARGV[1] == 'key' then
  if not live(ARGV[2]) then
    dead(ARGV[2])
  end
elseif ARGV[1] == 'list' then
  local page = redis.call('HSCAN', S, ARGV[3], 'MATCH', ARGV[2] .. '*', 'COUNT', 100)
  reply[2] = page[1]
  for i = 1, #page[2], 2 do
    local key = string.sub(page[2][i], 2)
    if ARGV[2] == 'l' then
      live(key)
    else
      dead(key)
    end
  end
else
  sweep()
  local runs, ended = tonumber(redis.call('HGET', S, 'r') or 0), 0
  for _, key in ipairs(past(Z, 1000)) do
    local state = redis.call('HGET', S, 'l' .. key)
    if state and string.sub(state, 2, 2) == 'R' then
      ended = ended + 1
    end
  end
  local all = redis.call('ZCARD', Z)
  runs = math.min(math.max(runs - ended, 0), all)
  return {damaged, all - runs, runs, redis.call('ZCARD', B), string.format('%.0f', math.max(began and now - tonumber(began) or 0, 0))}
end
if running ~= 0 or damaged > 0 then
  close()
end
reply[1] = damaged
return reply
