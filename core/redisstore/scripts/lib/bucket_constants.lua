-- The value of a token bucket. Included after integers.
--
-- It is text:
--   - the server time at which the debt is gone, in 16 digits of µs since 1970 and 3 of ns, or
--     zeros;
--   - the interval in which the debt is counted, in ns;
--   - while the bucket is held, the end and the length of the hold, in µs, each after a space.
--
-- The bucket of a calendar has its debt first, in 16 digits of µs and 3 of ns, and instead of the
-- interval @ and the end of its period, in µs. Any other text is damaged: it has no debt and is not
-- held.

local TIME = INT == '%d' and '%016d%03d%s%s' or '%016.0f%03d%s%s'
local HELD = INT == '%d' and ' %d %d' or ' %.0f %.0f'
local LONGEST = 9e15 -- µs, about the longest duration

-- expiry returns after how many ms a bucket expires that is needed for some µs: a second at least,
-- since a server has more work with keys that come and go than with keys that stay.
local function expiry(us)
  return us < 1000000 and '1000' or string.format(INT, (us - us % 1000) / 1000 + 1)
end
