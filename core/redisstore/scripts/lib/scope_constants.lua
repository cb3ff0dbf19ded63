-- Constants of scope.lua. A record counts as 4 GiB of results. Its constants are also text, which
-- is cheaper to pass to commands.
local SLICES, RECORD, ONE, ONE_LESS = 16, 4294967296, '4294967296', '-4294967296'
local UNCOUNTED = '0000000000000' -- the slice of a record without a scope
