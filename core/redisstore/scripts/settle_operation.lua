#!lua
-- Records the end of an attempt, if it still owns the record, or if the record is gone.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  the counts of the scope, if there is one; see scope.lua
-- ARGV     owner, fingerprint, state (C, N or U), number of the attempt to status as in the record, retention in
--          ms, data, maximum of bytes of results in the scope (0: unlimited)
--
-- Returns 1, or 0 if another attempt has taken over.

--#include integers scope_constants

-- The fast path: the scope has room.

local owner, state, data, scope, most = ARGV[1], ARGV[3], ARGV[6], KEYS[2], tonumber(ARGV[7])

local head = redis.call('GETRANGE', KEYS[1], 0, 125)
local prior, slice = '0', UNCOUNTED
if head ~= '' then
  if string.sub(head, 5, 26) ~= owner then
    return 0
  end
  if string.sub(head, 2, 2) ~= 'F' then -- a repeat
    return 1
  end
  prior, slice = string.sub(head, 4, 4), scope and string.sub(head, 114) or UNCOUNTED
end

local look = scope and (#slice ~= 13 or slice == UNCOUNTED) -- whether to add up the scope
local n
if scope and not look and data ~= '' then
  n = redis.pcall('HINCRBY', scope, slice, string.format('%d', #data))
  if type(n) == 'number' then
    local bytes, part = n % RECORD, math.ceil(most / SLICES)
    look = n < RECORD or most > 0 and math.floor(bytes / part) ~= math.floor((bytes - #data) / part)
  end
end
if not look then
  redis.call('SET', KEYS[1], '2' .. state .. '1' .. prior .. owner .. ARGV[2] .. ARGV[4] .. slice .. data, 'PX', ARGV[5])
  return 1
end

--#include scope

local t = redis.call('TIME')
local now_ms = t[1] * 1000 + math.floor(t[2] / 1000)

if type(n) ~= 'number' then -- the record is gone, and with it its slice
  slice = slice_of(now_ms, tonumber(ARGV[5]))
  count_record(scope, slice, now_ms)
  n = data ~= '' and redis.pcall('HINCRBY', scope, slice, #data)
elseif n < RECORD then -- the count of the record is gone
  count_record(scope, slice, now_ms)
end

if type(n) == 'number' then
  local ok, _, bytes = pcall(add_up, scope, now_ms)
  if ok and most > 0 and bytes > most then
    redis.call('HINCRBY', scope, slice, -#data)
    state, data = 'N', ''
  end
end

redis.call('SET', KEYS[1], '2' .. state .. '1' .. prior .. owner .. ARGV[2] .. ARGV[4] .. slice .. data, 'PX', ARGV[5])
return 1
