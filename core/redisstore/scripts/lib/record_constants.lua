-- Constants of record.lua. NO_MARKS is the highest Seq of the marks of an attempt without any, as
-- text.
local NO_MARKS = '0000000000'
