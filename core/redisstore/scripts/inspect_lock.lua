#!lua flags=no-writes
-- Returns the holders of a lock.
--
-- KEYS     as in lib/queue.lua and lib/lock.lua
-- ARGV     an id, or nothing for all
--
-- Returns {the lock's key or nothing, requests in the queue, id 1, X or S, first fence, last fence,
-- µs until its lease ends, its label, id 2, ...}.

--#include integers constants queue lock

local reply = {redis.call('HGET', RECORD, 'k') or '', redis.call('ZCOUNT', LIVING, '(' .. num(now), '+inf')}

local function say(h)
  if h and h.held then
    for _, field in ipairs({h.id, h.shared and 'S' or 'X', num(h.first), num(h.last), num(h.left), h.meta}) do
      reply[#reply + 1] = field
    end
  elseif h and h.left > 0 then
    reply[2] = reply[2] + 1 -- not claimed yet
  end
end

local alone = redis.call('GET', LONE)
if alone then
  local id, key, free, text = split(alone)
  if id and (ARGV[1] == '' or ARGV[1] == id) then
    reply[1] = key
    say(read(id, text, free))
  end
  return reply
end
local ids = {ARGV[1]}
if ARGV[1] == '' then
  ids = redis.call('ZRANGE', HOLDS, 0, -1)
end
for _, id in ipairs(ids) do
  say(find(id))
end
return reply
