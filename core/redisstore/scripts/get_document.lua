#!lua flags=no-writes
-- Returns a document: see store.Documents.
--
-- KEYS     as in document.lua
-- ARGV     name
--
-- Returns {}, or its version, age and time until it expires in µs, and data.

--#include document

local doc = find(ARGV[1])
if not doc then
  return {}
end
return {doc.version, string.format('%.0f', math.max(now - doc.put, 0)), string.format('%.0f', doc.ends - now), string.sub(doc.text, 50)}
