#!lua
-- Records the end of an attempt, if it still owns the record, or if the record is gone.
--
-- KEYS[1]  the record; records.go has its layout
-- KEYS[2]  the inboxes that await the end of the attempt
-- KEYS[3]  the counts of the scope, if there is one; see scope.lua
-- ARGV     owner, fingerprint, state (C, N or U), number of the attempt to status as in the record,
--          retention in ms, data, maximum of bytes of results in the scope (0: unlimited), the
--          holder and before it its size, 3 digits
--
-- Returns 1, or 0 if another attempt has taken over.

--#include integers scope_constants

-- The fast path: the scope has room.

local owner, state, data, scope, most = ARGV[1], ARGV[3], ARGV[6], KEYS[3], tonumber(ARGV[7])

local head = redis.call('GETRANGE', KEYS[1], 0, 158)
local t = redis.call('TIME')
local at = string.format(INT, t[1] * 1000000 + t[2])
local prior, slice, created, moves = '0', UNCOUNTED, at, false
if head ~= '' then
  if string.sub(head, 5, 26) ~= owner then
    return 0
  end
  local before = string.sub(head, 2, 2)
  if before ~= 'F' and before ~= 'R' then -- a repeat
    return 1
  end
  prior, created = string.sub(head, 4, 4), #head > 141 and string.sub(head, 127, 142) or at
  if scope then
    slice = string.sub(head, 114, 126)
    -- It was chosen when the attempt began, or was renewed, for the retention of that time.
    local kept, ends = tonumber(ARGV[5]), tonumber(slice) or 0
    moves = ends > t[1] * 1000 + kept * (1 + 1 / SLICES) + 1001 or ends * 1000 <= (tonumber(created) or 0) + kept * 1000
  end
end

local look = scope and (#slice ~= 13 or slice == UNCOUNTED or moves) -- whether to add up the scope
local n
if scope and not look and data ~= '' then
  n = redis.pcall('HINCRBY', scope, slice, string.format('%d', #data))
  if type(n) == 'number' then
    local bytes, part = n % RECORD, math.ceil(most / SLICES)
    look = n < RECORD or most > 0 and math.floor(bytes / part) ~= math.floor((bytes - #data) / part)
  end
end
local watched = string.sub(head, 159) == '1'
if not look and not watched then
  redis.call('SET', KEYS[1], '3' .. state .. '1' .. prior .. owner .. ARGV[2] .. ARGV[4] .. slice .. created .. at .. '0' .. ARGV[8] ..
    data, 'PX', ARGV[5])
  return 1
end

--#include scope watchers

local now_ms = t[1] * 1000 + math.floor(t[2] / 1000)

if not look then -- counted
elseif type(n) ~= 'number' then -- the record is gone, and with it its slice; or it belongs to another one
  if moves then
    discount_record(scope, slice)
  end
  slice = slice_of(now_ms, tonumber(ARGV[5]))
  count_record(scope, slice, now_ms)
  n = data ~= '' and redis.pcall('HINCRBY', scope, slice, #data)
elseif n < RECORD then -- the count of the record is gone
  count_record(scope, slice, now_ms)
end

if look and type(n) == 'number' then
  local ok, _, bytes = pcall(add_up, scope, now_ms)
  if ok and most > 0 and bytes > most then
    redis.call('HINCRBY', scope, slice, -#data)
    state, data = 'N', ''
  end
end

redis.call('SET', KEYS[1], '3' .. state .. '1' .. prior .. owner .. ARGV[2] .. ARGV[4] .. slice .. created .. at .. '0' .. ARGV[8] ..
  data, 'PX', ARGV[5])
if watched then
  ended(KEYS[1], KEYS[2])
end
return 1
