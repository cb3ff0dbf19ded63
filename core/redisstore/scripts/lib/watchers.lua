-- The processes that await the end of an attempt: their inboxes, in a zset, if the record says that
-- there is one.

-- ended publishes the end of an attempt to them. It comes last, and has no effect if an ACL forbids
-- it, or the key has another type.
local function ended(record, watchers)
  local inboxes = redis.pcall('ZRANGE', watchers, 0, -1)
  redis.call('DEL', watchers)
  for _, inbox in ipairs(inboxes) do
    redis.pcall('PUBLISH', inbox, 'ended ' .. record)
  end
end
