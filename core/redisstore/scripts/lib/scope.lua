-- The counts of a scope's records: a hash in the slot of the records. A field is a slice of time, a
-- sixteenth of the retention, named by the time at which the last of its records expires (ms, 13
-- digits). Its value is the number of records that began in the slice, times RECORD, plus the bytes
-- of their results. Counting takes one command. All slices are added up at the first record of a
-- slice, and whenever a slice has grown by a sixteenth of the limit: so a scope exceeds its limit
-- by less than that.
--
-- A failure to count must not prevent the write of a record, so the commands run under pcall.

-- slice_of returns the slice of a record that begins now.
local function slice_of(now, retention)
  local length = math.ceil(retention / SLICES)
  return string.format(INT, (math.floor(now / length) + 1) * length + retention)
end

-- add_up removes expired slices, and sets the hash to expire with its last slice. It returns the
-- number of records and of bytes, and when the first slice expires.
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

-- count_record counts a record, even without room for it.
local function count_record(scope, slice, now)
  local n = redis.pcall('HINCRBY', scope, slice, ONE)
  if type(n) == 'number' and n < 2 * RECORD then
    pcall(add_up, scope, now)
  end
end

-- discount_record undoes count_record, if the record was counted.
local function discount_record(scope, slice)
  local n = tonumber(redis.pcall('HGET', scope, slice))
  if n and n >= RECORD then
    redis.call('HINCRBY', scope, slice, ONE_LESS)
  end
end
