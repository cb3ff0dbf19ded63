-- Grants a lease, or queues a request for it.
--
-- KEYS     as in lib/lease.lua
-- ARGV[1]  ID and process
-- ARGV[2]  TTL in µs
-- ARGV[3]  number of fences
-- ARGV[4]  the rest of the hold's text, from the TTL on
-- ARGV[5]  ms for which the record is kept
-- ARGV[6]  the length of the key's name and the name, as in the record
-- ARGV[7]  the needs of the queue, separated by spaces: "1" to queue or "0", capacity less reserve,
--          reserve, maximum of earlier waiters or 0, place or 0, the process's token, "P" if it has
--          a subscription or "-", µs until it counts as dead without a heartbeat, ms for which an
--          idle record is kept, start of the processes' channels
-- ARGV[8]  unused: by it the client counts how often it sends the call
--
-- Returns one of
--   - "first fence, last fence" if granted, with " µs until it ends, place" if it was granted
--     before;
--   - {"withdrawn"};
--   - {"queued", "taken" or "full", a holder's label, µs until the request may be granted, weight
--     in use, number of other waiters, place, µs until the first hold ends}.
--
-- It declares no flags, for the reason in begin_operation.lua: at full memory it still returns the
-- holder.

--#include integers lease_record

local record = redis.call('GET', KEYS[1])
local largest = record and string.match(record, '^L[04](%d+):') or not record and 0
if largest then -- no holds and no waiters
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local first, last = fences(largest, now, ARGV[3])
  local ms = ARGV[5]
  if first > now then -- the clock stepped back
    ms = string.format(INT, ms + math.ceil((first - now) / 1000))
  end
  local pair = string.format(PAIR, first, last)
  redis.call('SET', KEYS[1],
    string.format('L1' .. INT .. ':', last) .. ARGV[6] .. ARGV[1] .. string.format(QUAD, first, last, now + ARGV[2], now) .. ARGV[4], 'PX', ms)
  return pair
end

--#include lease_queue

local id, me, span = string.sub(ARGV[1], 1, 22), string.sub(ARGV[1], 23), tonumber(ARGV[2])
local weight, label = string.match(ARGV[4], '^:%d+:(%d+):0:%d+:(.*)$')
local queue, limit, reserve, most, place, token, pushed, lasts, linger, channels =
  string.match(ARGV[7], '^(%d) (%d+) (%d+) (%d+) (%d+) (%d+) ([P-]) (%d+) (%d+) (.*)$')
weight, limit, reserve, most, place = tonumber(weight), tonumber(limit), tonumber(reserve), tonumber(most), tonumber(place)
lasts, linger, queue = tonumber(lasts), tonumber(linger), queue == '1'

-- There is one hold, and the request has to wait, since it does not fit, or behind the last waiter.
local size, at
largest, size, at = string.match(record, '^L3(%d+):(%d+):()')
if largest and queue and place == 0 then
  local seen, kept, stale, soonest, used, limits, longest, cutoff, number, holds, places, processes, from = string.match(record, COUNTS, at + size)
  -- rest is nil if the hold is damaged.
  local _, _, ends, _, length, _, _, labelled, rest = string.match(record, HOLD, from and from + NAMES)
  local final = redis.call('ZREVRANGE', KEYS[2], 0, 0)[1]
  local known, before = redis.call('HGET', KEYS[3], 'q' .. id), redis.call('HGET', KEYS[4], me)
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  ends, kept, places, processes = tonumber(ends), tonumber(kept), tonumber(places), tonumber(processes)
  local waits = final and string.sub(final, 1, 9) == string.format('q%08x', reserve) or
    not final and places == 0 and used and used + weight > limit
  if rest and string.sub(record, from, from + 21) ~= id and waits and not known and (before or redis.call('HLEN', KEYS[4]) == processes) and
    (most == 0 or places < most) and
    now >= tonumber(seen) and ends > now and ends <= now + length and kept >= now + KEPT then
    local waiters, grants, lapses, old, _ = 0, 0, 0, token, nil
    if before then
      _, _, _, waiters, grants, lapses, _, old = string.match(before, PROCESS)
    end
    place = math.max(number + 1, now)
    redis.call('HSET', KEYS[4], me, string.format(PROCESSED, now + lasts, lasts, now, waiters + 1, grants, lapses) .. pushed .. later(old, token))
    redis.call('HSET', KEYS[3], 'q' .. id, string.format(WAITING, reserve, place, weight, limit, span, now, ARGV[3]) .. me .. label)
    redis.call('ZADD', KEYS[2], 0, string.format(PLACE, reserve, place) .. me .. id)
    local ms = string.format(INT, math.ceil((kept - now) / 1000))
    for i = 2, not before and processes == 0 and 4 or not final and 3 or 1 do -- they are new
      redis.call('PEXPIRE', KEYS[i], ms)
    end
    redis.call('SET', KEYS[1], string.sub(record, 1, at + size - 1) ..
      string.format(COUNTED, now, kept, stale, soonest, used, math.max(limits, limit), longest, cutoff, place, holds, places + 1,
        before and processes or processes + 1) .. string.sub(record, from),
      'PX', string.format(INT, math.ceil((math.max(ends, kept, largest) - now) / 1000) + math.max(linger, 1000)))
    local left = string.format('%.0f', ends - now)
    return {'queued', string.sub(record, rest, rest + labelled - 1), left, used, places, string.format('%.0f', place), left}
  end
end

-- There are several holds, all alive, and no waiters: the request fits beside them.
largest, size, at = string.match(record, '^L2(%d+):(%d+):()')
if largest and place == 0 then
  local seen, kept, stale, soonest, used, limits, longest, cutoff, number, holds, places, processes = string.match(record, COUNTS, at + size)
  local item, items = redis.call('HGET', KEYS[3], 'h' .. id), redis.call('HLEN', KEYS[3])
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  if used and places == '0' and holds ~= '0' and items == tonumber(holds) and not item and used + weight <= limit and now >= tonumber(seen) and
    tonumber(soonest) > now and tonumber(kept) >= math.max(longest, now + span, now + KEPT) then
    local first, last = fences(largest, now, ARGV[3])
    local ends = now + span
    redis.call('ZADD', KEYS[2], 0, string.format(END, ends) .. id)
    redis.call('HSET', KEYS[3], 'h' .. id, ARGV[1] .. string.format(QUAD, first, last, ends, now) .. ARGV[4])
    redis.call('SET', KEYS[1], string.format('L2' .. INT .. ':', last) .. string.sub(record, at - #size - 1, at + size - 1) ..
      string.format(COUNTED, now, kept, stale, math.min(soonest, ends), used + weight, limits, math.max(longest, ends), cutoff, number,
        holds + 1, 0, processes),
      'PX', string.format(INT, math.ceil((math.max(kept, last) - now) / 1000) + math.max(linger, 1000)))
    return string.format(PAIR, first, last)
  end
end

--#include lease

S.channels = channels
S.load(1)
if S.late then
  local removal = redis.call('ZSCORE', KEYS[5], id)
  if removal and tonumber(removal) > S.now then
    return {'withdrawn'}
  end
end
S.key = string.match(ARGV[6], '^%d+:(.*)$')
S.expire()

local function granted(h)
  S.save(linger)
  return string.format(PAIR .. ' %.0f %.0f', h.first, h.last, h.ends - S.now, h.place)
end

-- remaining returns the time until enough holds end for the request, and the label of one of them.
local function remaining()
  if S.only then
    return S.only.ends - S.now, S.only.label
  end
  local need, ends, label = S.used + weight - limit, S.now, ''
  if S.crowd and S.crowd.holds > 0 and need >= S.used then
    local final = redis.call('ZREVRANGEBYLEX', KEYS[2], '(f', '[e', 'LIMIT', 0, 1)[1]
    local h = final and S.hold_of(string.sub(final, 18))
    if h then
      return math.max(h.ends - S.now, 0), h.label
    end
  end
  if S.crowd and S.crowd.holds > 0 then
    local left = 100
    S.members('[e', '(f', 1, function(member)
      local h = S.hold_of(string.sub(member, 18))
      if h then
        need, ends, label = need - h.weight, h.ends, h.label
      end
      left = left - 1
      return need <= 0 or left == 0
    end)
  end
  return math.max(ends - S.now, 0), label
end

local function refused(outcome, place)
  local left, label = remaining()
  local soonest = S.only and S.only.ends - S.now or S.crowd and S.crowd.holds > 0 and math.max(S.crowd.soonest - S.now, 1) or 0
  local places = S.crowd and S.crowd.places or 0
  if outcome == 'queued' or S.dirty then -- a write would fail at full memory
    S.save(linger)
  end
  return {outcome, label, string.format('%.0f', left), string.format('%.0f', S.used), outcome == 'queued' and places - 1 or places,
    string.format('%.0f', place), string.format('%.0f', soonest)}
end

local mine = S.hold_of(id)
if mine then -- a repeat
  S.extend(mine, span)
  S.admit(me)
  return granted(mine)
end

local waiting = S.waiter_of(id)
if waiting then -- a repeat: its capacity may have changed
  S.heartbeat(me, token, pushed == 'P', lasts, true)
  waiting.limit, waiting.span = limit, span
  S.put_waiter(waiting)
  S.freed = true
  S.admit(me)
  mine = S.hold_of(id)
  if mine then -- the reply reports the grant, too
    S.extend(mine, span)
    return granted(mine)
  end
  return refused('queued', waiting.place)
end

if place > 0 then -- it is queued anew
  queue, most = true, 0
end
S.admit(me)
-- ahead has the weights of all holds, and of the waiters before the request.
local clear, ahead = true, S.used
if clear and S.crowd and S.crowd.places > 0 then
  local to = '(' .. string.format(PLACE, reserve, place > 0 and place or NEVER)
  local before = redis.call('ZREVRANGEBYLEX', KEYS[2], to, '[q', 'LIMIT', 0, 1)[1]
  clear = not before or S.removed[before] or S.split(before) ~= reserve
  if clear and before then
    S.members('[q', to, CHUNK, function(member)
      local _, _, _, other = S.split(member)
      local w = S.waiter_of(other)
      ahead = ahead + (w and w.weight or 0)
      return ahead + weight > limit
    end)
  end
end
if clear and ahead + weight <= limit then
  local first, final = fences(S.largest, S.now, tonumber(ARGV[3]))
  S.largest = final
  mine = {first = first, last = final, ends = S.now + span, span = span, since = S.now, weight = weight, place = place,
    untaken = false, id = id, proc = me, label = label}
  S.add_hold(mine)
  return granted(mine)
end
if queue and most > 0 and S.crowd and S.crowd.places >= most then
  S.prune(me, false)
  if S.crowd.places >= most then
    return refused('full', 0)
  end
end
if not queue then
  return refused('taken', 0)
end
if not S.crowd then
  S.begin_crowd()
end
if place == 0 then
  place = math.max(S.crowd.number + 1, S.now)
end
S.crowd.number = math.max(S.crowd.number, place)
local p = S.heartbeat(me, token, pushed == 'P', lasts, true)
p.places, S.crowd.places = p.places + 1, S.crowd.places + 1
S.added[S.waiter_member(reserve, place, me, id)] = true
S.put_waiter({id = id, reserve = reserve, place = place, weight = weight, limit = limit, span = span, since = S.now,
  fences = tonumber(ARGV[3]), proc = me, label = label})
return refused('queued', place)
