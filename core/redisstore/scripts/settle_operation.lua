#!lua
-- Records how an attempt ended, if it still owns the record, or if the record is gone.
--
-- KEYS[1]  the record; records.go has its layout
-- ARGV     owner, fingerprint, number of the attempt, state (C, N or U), status, retention in ms,
--          data
--
-- Returns 1, or 0 if another attempt has taken over.

local owner, fingerprint, number, state, status = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local head = redis.call('GETRANGE', KEYS[1], 0, 25)
local prior = '0'
if head ~= '' then
  if string.sub(head, 5, 26) ~= owner then
    return 0
  end
  if string.sub(head, 2, 2) ~= 'F' then -- sent twice
    return 1
  end
  prior = string.sub(head, 4, 4)
end
redis.call('SET', KEYS[1], '1' .. state .. '1' .. prior .. owner .. fingerprint ..
  string.format('%08.0f', tonumber(number)) .. string.rep('0', 32) ..
  string.format('%04.0f', tonumber(status)) .. ARGV[7], 'PX', ARGV[6])
return 1
