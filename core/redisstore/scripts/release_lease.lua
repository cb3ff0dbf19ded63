#!lua flags=allow-oom
-- Ends a hold or withdraws a request, and refuses a delayed acquire of its ID.
--
-- KEYS     as in lib/lease.lua
-- ARGV     ID; first fence of the hold, or 0 if none is known; ms for which an idle record is kept;
--          "1" to leave a tombstone, "-" to end only a hold with this fence, or "0"; "1" if an
--          earlier call may have been carried out, or "0"; process, and start of the processes'
--          channels
--
-- Returns 1 if it was held with this fence, 0 if not, 2 if it was not held but the earlier call may
-- have ended it.

--#include integers lease_record

local id, fence = ARGV[1], ARGV[2]
local record = redis.call('GET', KEYS[1]) or ''
local largest, size, at = string.match(record, '^L1(%d+):(%d+):()')
-- The only hold, without waiters.
if largest and ARGV[4] == '0' and string.sub(record, at + size, at + size + 21) == id then
  local first, ends = string.match(record, '^(%d+):%d+:(%d+):', at + size + NAMES)
  if first and (fence == first or fence == '0') then
    local t = redis.call('TIME')
    local now = t[1] * 1000000 + t[2]
    local held, ms = tonumber(ends) > now and 1 or 0, ARGV[3]
    if ms == '0' then
      redis.call('DEL', KEYS[1])
      return held
    elseif tonumber(largest) > now then
      ms = string.format(INT, ms + math.ceil((largest - now) / 1000))
    end
    redis.call('SET', KEYS[1], 'L4' .. largest .. ':0:' .. held .. ':' .. first .. ':' .. id, 'PX', ms)
    return held
  end
end

--#include lease_queue

-- The ID has the only hold, and the next waiter takes its place.
local linger = tonumber(ARGV[3])
largest, size, at = string.match(record, '^L3(%d+):(%d+):()')
local seen, kept, stale, _, _, limits, longest, cutoff, number, holds, places, processes, from = string.match(record, COUNTS, largest and at + size)
if from and ARGV[4] == '0' and string.sub(record, from, from + 21) == id then
  local first, _, ends, _, length, _, place = string.match(record, HOLD, from + NAMES)
  local next = holds == '0' and redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  local w = next and redis.call('HGET', KEYS[3], 'q' .. string.sub(next, 42))
  local name = next and string.sub(next, 26, 41)
  local p = w and redis.call('HGET', KEYS[4], name)
  local untaken, holder = place and tonumber(place) < 0, string.sub(record, from + 22, from + NAMES - 1)
  local its = untaken and holder ~= name and redis.call('HGET', KEYS[4], holder)
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  if p and (fence == first or fence == '0') and now >= tonumber(seen) and tonumber(ends) > now and
    tonumber(ends) <= now + length and kept - now >= KEPT then
    local till, lasts, beat, waiters, grants, lapses, pushed, token = string.match(p, PROCESS)
    local _, number_of, weight, limit, span, _, wanted, rest = string.match(w, WAITER)
    weight, limits = tonumber(weight), tonumber(limits)
    local channels = string.sub(ARGV[6], 17)
    local alive = tonumber(beat) >= tonumber(cutoff) and tonumber(beat) <= now and lapses == '0'
    if alive and pushed == 'P' then
      local subscribers = redis.pcall('PUBSUB', 'NUMSUB', channels .. name)
      alive = not subscribers.err and subscribers[2] > 0
    elseif alive then
      alive = tonumber(till) > now
    end
    -- If it leaves no room, no other waiter fits beside it.
    if alive and weight <= tonumber(limit) and weight >= limits then
      local short = math.min(GRANT, span)
      local one, final = fences(largest, now, wanted)
      redis.call('HSET', KEYS[4], name, string.format(PROCESSED, till, lasts, beat, waiters - 1, untaken and holder == name and grants or grants + 1, 0) ..
        pushed .. token)
      if its then -- its grant ends
        local ends, after, beat, left, more, _, subscribed, said = string.match(its, PROCESS)
        if left == '0' and more == '1' then
          redis.call('HDEL', KEYS[4], holder)
          processes = processes - 1
        else
          redis.call('HSET', KEYS[4], holder, string.format(PROCESSED, ends, after, beat, left, more - 1, 0) .. subscribed .. said)
        end
      end
      redis.call('HDEL', KEYS[3], 'q' .. string.sub(next, 42))
      redis.call('ZREM', KEYS[2], next)
      redis.call('SET', KEYS[1], string.format('L3' .. INT .. ':', final) .. size .. ':' .. string.sub(record, at, at + size - 1) ..
        string.format(COUNTED, now, kept, stale, now + short, weight, limits, longest, cutoff, number, holds, places - 1, processes) ..
        string.sub(next, 42) .. name .. string.format(QUAD, one, final, now + short, now) .. string.format(':' .. INT .. ':%d:-', short, weight) ..
        number_of .. ':' .. #rest - 16 .. ':' .. string.sub(rest, 17),
        'PX', string.format(INT, math.ceil((math.max(kept, final) - now) / 1000) + math.max(linger, 1000)))
      redis.pcall('PUBLISH', channels .. name, 'lease ' .. string.sub(next, 42) .. string.format(PUSHED, one, final, number_of, short) .. token .. ' ' .. KEYS[1])
      return 1
    end
  end
end

-- The ID has one of several holds, and there are no waiters.
largest, size, at = string.match(record, '^L2(%d+):(%d+):()')
local text = largest and ARGV[4] == '0' and redis.call('HGET', KEYS[3], 'h' .. id)
if text then
  local seen, kept, stale, soonest, used, limits, longest, cutoff, number, holds, places, processes = string.match(record, COUNTS, at + size)
  local first, _, ends, _, _, weight, place = string.match(text, HOLD, NAMES + 1)
  local items, t = redis.call('HLEN', KEYS[3]), redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  if used and place and places == '0' and holds ~= '1' and items == tonumber(holds) and (fence == first or fence == '0') and
    tonumber(place) >= 0 and tonumber(ends) > now and now >= tonumber(seen) then
    redis.call('ZREM', KEYS[2], string.format(END, ends) .. id)
    redis.call('HDEL', KEYS[3], 'h' .. id)
    redis.call('SET', KEYS[1], string.sub(record, 1, at + size - 1) ..
      string.format(COUNTED, now, kept, stale, soonest, used - weight, limits, longest, cutoff, number, holds - 1, 0, processes),
      'PX', string.format(INT, math.ceil((math.max(kept, largest) - now) / 1000) + math.max(linger, 1000)))
    return 1
  end
end

--#include lease

S.channels = string.sub(ARGV[6], 17)
fence = tonumber(fence)

S.load(1)
S.expire()
local answer = 0
local mine, waiting = S.hold_of(id), S.waiter_of(id)
local named = mine and (fence == 0 or fence == mine.first)
if ARGV[4] == '-' and not named then
  return 0
elseif mine then
  S.settle(mine, false)
  S.remove_hold(mine)
  answer = named and 1 or 0
elseif waiting then
  S.withdraw(waiting)
elseif S.released and S.released.id == id and (tonumber(S.released.fence) == fence or fence == 0) then
  answer = S.released.answer == '1' and 1 or 0
elseif ARGV[5] == '1' then
  answer = 2
end
if mine or not S.released then
  S.released = {id = id, fence = mine and mine.first or fence, answer = answer == 1 and '1' or '0'}
end
if ARGV[4] == '1' then
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', string.format(INT, S.now))
  redis.call('ZADD', KEYS[5], string.format(INT, S.now + LATE_FOR), id)
  redis.call('PEXPIRE', KEYS[5], string.format(INT, LATE_FOR / 1000 + 1000))
  S.late = true
end
S.admit('') -- the reply has no grants for the caller
S.save(linger)
return answer
