#!lua flags=allow-oom
-- Extends a hold that has not expired, or verifies it.
--
-- KEYS     as in lib/lease.lua
-- ARGV     ID; first fence; TTL in µs, or 0 to verify; ms for which an idle record is kept; start
--          of the processes' channels
--
-- Returns 1, or 0 if it is not held.

--#include integers lease_record

local id, fence, span, linger = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local record = redis.call('GET', KEYS[1]) or ''
local largest, size, at = string.match(record, '^L1(%d+):(%d+):()')
if largest then -- the only hold, without waiters
  local first, before, ends, since, lasts, after = string.match(record, '^(%d+):%d+:()(%d+):(%d+):(%d+)():', at + size + NAMES)
  if first ~= fence or string.sub(record, at + size, at + size + 21) ~= id then
    return 0
  end
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  if math.min(tonumber(ends), now + lasts) <= now then
    return 0
  end
  if span > 0 then
    redis.call('SET', KEYS[1],
      string.sub(record, 1, before - 1) .. string.format(INT .. ':%s:' .. INT, now + span, since, span) .. string.sub(record, after),
      'PX', string.format(INT, math.ceil(math.max(span, largest - now) / 1000) + math.max(linger, 1000)))
  end
  return 1
end

-- The only hold, with waiters: two times of their counts change, see lease_queue.lua.
largest, size, at = string.match(record, '^L3(%d+):(%d+):()')
if largest and span > 0 then
  local seen, same, kept, counts = string.match(record, '^(%d+):((%d+):%d+:)%d+()', at + size)
  local from = counts and string.find(record, id, counts, true) -- sooner than the counts between
  local first, before, ends, since, lasts, after, place = string.match(record, '^(%d+):%d+:()(%d+):(%d+):(%d+)():%d+:(%-?%d+):', from and from + NAMES)
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  if place and first == fence and tonumber(place) >= 0 and tonumber(ends) > now and
    tonumber(ends) <= now + lasts and now >= tonumber(seen) and kept - now >= KEPT then
    redis.call('SET', KEYS[1], string.sub(record, 1, at + size - 1) .. string.format(INT .. ':%s' .. INT, now, same, now + span) ..
      string.sub(record, counts, before - 1) .. string.format(INT .. ':%s:' .. INT, now + span, since, span) .. string.sub(record, after),
      'PX', string.format(INT, math.ceil((math.max(now + span, kept, largest) - now) / 1000) + math.max(linger, 1000)))
    return 1
  end
end

--#include lease_queue lease

S.channels = ARGV[5]
S.load(1)
local mine = S.hold_of(id)
if not mine or mine.first ~= tonumber(fence) or math.min(mine.ends, S.now + mine.span) <= S.now then
  return 0
end
if span > 0 then
  S.expire()
  S.extend(mine, span)
  S.admit('')
  S.save(linger)
end
return 1
