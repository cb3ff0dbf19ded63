-- Reads documents of a space, and removes some that have expired: see store.Documents.
--
-- KEYS     as in document.lua
-- ARGV     maximum of documents, maximum of bytes, which the last document may exceed; names, or none
--          for all of the space
--
-- Returns the number of names that were not read, and these; and for each document its name, its
-- version, age and time until it expires in µs, and data.
--
-- It declares no flags: on a server that takes no writes it reads nevertheless.

--#include document

local most, bytes, names = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
if #ARGV > 2 then
  for i = 3, #ARGV do
    names[#names + 1] = ARGV[i]
  end
else
  names = redis.call('ZRANGE', Z, 0, -1)
end
local docs, read = {}, 0
while read < #names and read < most and bytes > 0 do
  read = read + 1
  local doc = find(names[read])
  if doc then
    bytes = bytes - #doc.text
    for _, value in ipairs({names[read], doc.version, string.format('%.0f', math.max(now - doc.put, 0)), string.format('%.0f', doc.ends - now),
      string.sub(doc.text, 50)}) do
      docs[#docs + 1] = value
    end
  end
end
local reply = {#names - read}
for i = read + 1, #names do
  reply[#reply + 1] = names[i]
end
for _, value in ipairs(docs) do
  reply[#reply + 1] = value
end
pcall(sweep)
return reply
