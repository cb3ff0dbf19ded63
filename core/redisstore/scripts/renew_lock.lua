#!lua flags=allow-oom
-- Extends a hold that has not expired.
--
-- KEYS     as above
-- ARGV     id, lease in µs, lock-delay in µs
--
-- Returns 1, or 0 if the id does not hold the lock.

local mine = find(ARGV[1])
if not mine or not mine.held then
  return 0
end
extend(mine, tonumber(ARGV[2]), tonumber(ARGV[3]))
return 1
