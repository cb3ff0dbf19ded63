-- Stands before scripts that write large integers: how they do. As what it is, an integer is written in half the time
-- that '%.0f' takes, or Redis itself, unless those of the server are too short for it, as on 32 bits.
local INT = string.format('%d', 2 ^ 40) == '1099511627776' and '%d' or '%.0f'

