-- The fast path of begin_operation.lua: a new operation, whose scope has room.

local owner, fingerprint, lease, retention, scope, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), KEYS[3], tonumber(ARGV[6])

if redis.call('EXISTS', KEYS[2]) == 1 then
  return {'refused', 0}
end

local record = redis.call('GETRANGE', KEYS[1], 0, 125 + tonumber(ARGV[7])) -- a large result is read separately
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local now_ms = math.floor(now / 1000)
local leased = string.format(INT, now + lease) .. string.rep('0', 16 - #ARGV[3]) .. ARGV[3] -- 32 digits
local slice, look = UNCOUNTED, false -- count of the slice; whether to add up the scope

if record == '' then
  if scope then
    local length = math.ceil(retention / SLICES)
    slice = string.format(INT, (math.floor(now_ms / length) + 1) * length + retention)
    local n = math.floor(redis.call('HINCRBY', scope, slice, ONE) / RECORD)
    if n == 1 and redis.call('HLEN', scope) == 1 then
      redis.call('PEXPIREAT', scope, slice)
    else
      look = n == 1 or most > 0 and n % math.ceil(most / SLICES) == 0
    end
  end
  if not look then
    if redis.call('SET', KEYS[1], '2F10' .. owner .. fingerprint .. '00000001' .. leased .. '0000' .. slice, 'PX', ARGV[4], 'NX') then
      return {'started', 1}
    end
    look = true -- an empty record is damaged
  end
end
