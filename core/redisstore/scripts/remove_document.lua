#!lua flags=allow-oom
-- Removes a document: see store.Documents.
--
-- KEYS     as in document.lua
-- ARGV     name; the version that it may remove, 16 digits (0: any)
--
-- Returns 1 if the name has no document now, or 0.

--#include document

local doc = find(ARGV[1])
if doc and tonumber(ARGV[2]) ~= 0 and ARGV[2] ~= doc.version then
  return 0
end
drop(ARGV[1])
close()
return 1
