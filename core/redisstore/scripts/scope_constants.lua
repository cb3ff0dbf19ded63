-- Of scope.lua. A record counts as much as 4 GiB of results; as text, which is cheaper to pass on, too.
local SLICES, RECORD, ONE, ONE_LESS = 16, 4294967296, '4294967296', '-4294967296'
local UNCOUNTED = '0000000000000' -- the slice of a record without a scope
