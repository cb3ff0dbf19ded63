-- How the scripts of operations count what a scope has: in a hash, in the slot of the scope's records. A field is a
-- slice of time, a sixteenth of the retention, by the time at which the last of its records ends (ms, 13 digits). Its
-- value is the number of the records that began in it, times RECORD, and the bytes of their results. It costs one
-- command to count; what all slices have is added up at the first record of a slice and whenever a slice has grown by
-- a sixteenth of the bound, so that a scope exceeds its bound by less than that.
--
-- Where a record is written, what goes wrong with these numbers must not matter: hence pcall.

-- slice_of returns the slice of a record that is kept for a retention from now on.
local function slice_of(now, retention)
  local length = math.ceil(retention / SLICES)
  return string.format(INT, (math.floor(now / length) + 1) * length + retention)
end

-- add_up forgets the slices that have ended, and has the hash live as long as its last slice. It returns the number
-- of records and of bytes, and when the first of the slices ends.
local function add_up(scope, now)
  local records, bytes, first, last = 0, 0, nil, nil
  local all = redis.call('HGETALL', scope)
  for i = 1, #all, 2 do
    local ends, n = all[i], tonumber(all[i + 1]) or 0
    if (tonumber(ends) or 0) <= now then
      redis.call('HDEL', scope, ends)
    else
      local r = math.floor(n / RECORD)
      records, bytes = records + r, bytes + n - r * RECORD
      if r > 0 and (not first or ends < first) then
        first = ends
      end
      if not last or ends > last then -- both have 13 digits
        last = ends
      end
    end
  end
  if last then
    redis.call('PEXPIREAT', scope, last)
  end
  return records, bytes, tonumber(first)
end

-- count_record counts a record, whether there is room for it or not.
local function count_record(scope, slice, now)
  local n = redis.pcall('HINCRBY', scope, slice, ONE)
  if type(n) == 'number' and n < 2 * RECORD then
    pcall(add_up, scope, now)
  end
end

-- discount_record takes it back, if it is counted.
local function discount_record(scope, slice)
  local n = tonumber(redis.pcall('HGET', scope, slice))
  if n and n >= RECORD then
    redis.call('HINCRBY', scope, slice, ONE_LESS)
  end
end
