-- The processes that await the end of an attempt: inboxes in a zset, if the record says that there is one.

-- ended tells them, last of all, and without effect if an ACL forbids it, or the key has another type.
local function ended(record, watchers)
  local inboxes = redis.pcall('ZRANGE', watchers, 0, -1)
  redis.call('DEL', watchers)
  for _, inbox in ipairs(inboxes) do
    redis.pcall('PUBLISH', inbox, 'ended ' .. record)
  end
end
