-- The fast path of settle_operation.lua: the scope has room.

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
