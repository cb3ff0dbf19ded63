-- The format of large integers, included first in scripts that write them. '%d' takes half the time
-- of '%.0f' and of Redis's own conversion, but some servers, such as those on 32 bits, cannot
-- format large integers with it.
local INT = string.format('%d', 2 ^ 40) == '1099511627776' and '%d' or '%.0f'

