-- The leases of a key. Included after lease_queue. Up to five keys:
--
-- KEYS[1]  the record
-- KEYS[2]  the order, a zset whose members are sorted as text: "e", the end (16 digits) and the ID
--          of each hold, if there are several; "q", the reserve (8 hexadecimal digits), the place
--          (16 digits), the process and the ID of each waiter
-- KEYS[3]  the items, a hash: "h" and an ID has a hold, "q" and an ID a waiter
-- KEYS[4]  the processes that wait, a hash
-- KEYS[5]  the tombstones, a zset: ID -> when it is removed
--
-- The record has the sizes of the order, the items and the processes, and outlives them: if the
-- sizes differ, the state was lost. load reads every key before the first write, so that a script
-- fails then if a key has another type. Changes are collected, and written by save.

local SECOND = 1000000
local GONE = 30 * SECOND      -- after which a process without heartbeats is removed
local LATE_FOR = 60 * SECOND  -- how long a tombstone is kept
local MOST_GRANTS = 64        -- in a step; and of a process, not taken up yet
local CHUNK = 500
local NEVER = 2 ^ 53          -- later than every time

-- S has the state and the steps. A table costs a script less time than a local for each: see the
-- note on upvalues below.
--
--   channels               the start of the processes' channels: set by each script
--   now, base              the time; where in KEYS the keys of this state begin
--   largest, key           the largest fence, the key's name
--   only, used, crowd      the only hold, if there is one; the weight in use; the counts of the
--                          other keys, if they exist
--   released, late         the last release; whether there are tombstones
--   processes, found,      read so far: processes by name, holds and waiters by ID (false if
--   waiters                there is none)
--   removed, added,        changes of the order and the items
--   unset, set
--   fresh, wipe            the order and the items are empty; they are not, but belong to no state
--   pushes, receivers      messages and receivers by process
--   freed, dirty           a waiter may be granted; a hold or a waiter was removed, or changed
--
-- Creating a function costs time for each outer local that it uses, more so the more of them there
-- are.
local S = {}

-- read_hold returns the hold whose text begins at a position, and the position after it.
function S.read_hold(text, at)
  local first, final, ends, since, span, weight, place, size, label = string.match(text, HOLD, at + NAMES)
  return {
    first = tonumber(first), last = tonumber(final), ends = tonumber(ends), span = tonumber(span), since = tonumber(since),
    weight = tonumber(weight), place = math.abs(place), untaken = tonumber(place) < 0, id = string.sub(text, at, at + 21),
    proc = string.sub(text, at + 22, at + NAMES - 1), label = string.sub(text, label, label + size - 1),
  }, label + size
end

function S.text_of(h)
  return h.id .. h.proc .. string.format(QUAD .. ':' .. INT .. ':%d:' .. INT .. ':%d:', h.first, h.last, h.ends, h.since, h.span, h.weight,
    h.untaken and -h.place or h.place, #h.label) .. h.label
end

function S.end_member(h) return string.format(END, h.ends) .. h.id end

function S.waiter_member(reserve, place, proc, id) return string.format(PLACE, reserve, place) .. proc .. id end

-- split returns the reserve, the place, the process (16 characters) and the ID of a member.
function S.split(member)
  return tonumber(string.sub(member, 2, 9), 16), tonumber(string.sub(member, 10, 25)), string.sub(member, 26, 41), string.sub(member, 42)
end

-- count reads the sizes of the order, the items and the processes.
function S.count()
  return redis.call('ZCARD', KEYS[S.base + 1]), redis.call('HLEN', KEYS[S.base + 2]), redis.call('HLEN', KEYS[S.base + 3])
end

function S.begin_crowd()
  local order, items, names = S.count()
  S.wipe = order + items + names > 0 -- of a lost state
  S.fresh = true
  S.crowd = {seen = S.now, kept = 0, longest = 0, cutoff = 0, number = 0, holds = 0, places = 0, processes = 0, limit = 0,
    stale = S.now + GONE, soonest = NEVER}
end

-- load reads the state whose keys begin at KEYS[first].
function S.load(first)
  S.base = first
  local t = redis.call('TIME')
  S.now = t[1] * SECOND + t[2]
  local record = redis.call('GET', KEYS[S.base]) or ''
  S.largest, S.key, S.only, S.used, S.crowd, S.released, S.late = 0, '', nil, 0, nil, nil, false
  S.processes, S.found, S.waiters, S.removed, S.added, S.unset, S.set = {}, {}, {}, {}, {}, {}, {}
  S.fresh, S.wipe, S.pushes, S.receivers, S.freed, S.dirty = false, false, {}, {}, false, false
  local flags, largest, size, at = string.match(record, HEAD)
  if not flags or not pcall(function()
    local parts = tonumber(flags, 16)
    S.largest, S.key, at = math.min(largest, NEVER), string.sub(record, at, at + size - 1), at + size
    if parts % 4 >= CROWD then
      local c = {}
      c.seen, c.kept, c.stale, c.soonest, S.used, c.limit, c.longest, c.cutoff, c.number, c.holds, c.places, c.processes, at =
        string.match(record, COUNTS, at)
      for name, text in pairs(c) do
        c[name] = tonumber(text)
      end
      S.used, S.crowd = tonumber(S.used), c
    end
    if parts % 2 >= HELD then
      S.only, at = S.read_hold(record, at)
      if S.crowd then
        S.crowd.soonest = NEVER
      else
        S.used = S.only.weight
      end
    end
    if parts % 8 >= RELEASED then
      S.released = {}
      S.released.answer, S.released.fence, S.released.id = string.match(record, '^(%d):(%d+):(.*)$', at)
      S.released.fence = S.released.fence + 0 -- or it is damaged
    end
    S.late = parts >= LATE
  end) then -- no record, or a damaged one
    S.only, S.used, S.crowd, S.released = nil, 0, nil, nil
  end
  if S.crowd then
    local order, items, names = S.count()
    S.fresh = order == 0
    if order ~= items or items ~= S.crowd.holds + S.crowd.places or names ~= S.crowd.processes then -- lost
      S.crowd, S.used = nil, S.only and S.only.weight or 0
      S.begin_crowd()
    end
  end
  S.late = S.late and redis.call('ZCARD', KEYS[S.base + 4]) > 0
end

function S.process_of(name)
  local p = S.processes[name]
  if p == nil then
    local text = S.crowd and S.crowd.processes > 0 and redis.call('HGET', KEYS[S.base + 3], name)
    p = false
    if text then
      p = {name = name}
      local pushed
      p.till, p.span, p.beat, p.places, p.grants, p.lapses, pushed, p.token = string.match(text, PROCESS)
      for _, field in ipairs({'till', 'span', 'beat', 'places', 'grants', 'lapses'}) do
        p[field] = tonumber(p[field]) or 0
      end
      p.pushed, p.token = pushed == 'P', p.token or '0'
      if p.beat > S.now then -- the clock stepped back
        p.beat, p.till, p.changed, S.dirty = S.now, S.now + p.span, true, true
      end
    end
    S.processes[name] = p
  end
  return p
end

-- changed returns a process, which is written by save.
function S.changed(name)
  local p = S.process_of(name)
  if p then
    p.changed = true
  end
  return p
end

-- heartbeat records that a process is alive, and creates its entry if create is set.
function S.heartbeat(name, token, pushed, span, create)
  local p = S.changed(name)
  if not p and create then
    p = {name = name, places = 0, grants = 0, lapses = 0, token = token, new = true, changed = true}
    S.processes[name] = p
    S.crowd.processes = S.crowd.processes + 1
  end
  if p then
    p.beat, p.till, p.span, p.pushed = S.now, S.now + span, span, pushed
    p.token = later(p.token, token) -- although it may arrive late
  end
  return p
end

function S.channel(name) return S.channels .. name end

-- alive reports whether a process may be granted a lease:
--   - the caller's process;
--   - a process with a subscription, or with a heartbeat in time. After a grant that was not taken
--     up, it must have sent a heartbeat since that grant was made.
function S.alive(name, me)
  local p = S.process_of(name)
  if not p or p.beat < S.crowd.cutoff then
    return name == me and p
  end
  if name == me then
    return true
  end
  if p.pushed then
    if S.receivers[name] == nil then
      local reply = redis.pcall('PUBSUB', 'NUMSUB', S.channel(name))
      S.receivers[name] = not reply.err and tonumber(reply[2]) or false
    end
    if S.receivers[name] then
      return S.receivers[name] > 0
    end
  end
  return p.till > S.now
end

-- hold_of returns the hold of an ID, or nil.
function S.hold_of(id)
  local h = S.found[id]
  if h == nil then
    h = false
    if S.only and S.only.id == id then
      h = S.only
    elseif S.crowd and S.crowd.holds > 0 then
      local text = redis.call('HGET', KEYS[S.base + 2], 'h' .. id)
      h = text and S.read_hold(text, 1) or false
    end
    S.found[id] = h
  end
  return h or nil
end

function S.keep_longest(h)
  S.crowd.longest = math.max(S.crowd.longest, h.ends)
  S.crowd.soonest = math.min(S.crowd.soonest, h.ends)
end

function S.add_to_crowd(h)
  S.added[S.end_member(h)] = true
  S.set['h' .. h.id], S.unset['h' .. h.id] = S.text_of(h), nil
  S.crowd.holds = S.crowd.holds + 1
  S.keep_longest(h)
end

function S.add_hold(h)
  S.used = S.used + h.weight
  S.found[h.id] = h
  if not S.only and not (S.crowd and S.crowd.holds > 0) then
    S.only = h
    return
  end
  if not S.crowd then
    S.begin_crowd()
  end
  if S.only then
    S.add_to_crowd(S.only)
    S.only = nil
  end
  S.add_to_crowd(h)
end

-- put writes a changed hold. before is its member in the order before the change.
function S.put(h, before)
  if h ~= S.only then
    local member = S.end_member(h)
    S.added[before], S.removed[before] = nil, true
    S.added[member], S.removed[member] = true, nil
    S.set['h' .. h.id] = S.text_of(h)
    S.keep_longest(h)
  end
end

function S.remove_hold(h)
  S.used = S.used - h.weight
  S.found[h.id] = false
  S.freed, S.dirty = true, true
  if h == S.only then
    S.only = nil
    return
  end
  local member = S.end_member(h)
  S.added[member], S.removed[member] = nil, true
  S.set['h' .. h.id], S.unset['h' .. h.id] = nil, true
  S.crowd.holds = S.crowd.holds - 1
  if S.crowd.holds == 0 then
    S.crowd.longest, S.crowd.soonest = 0, NEVER
  end
end

-- settle ends the time of a pushed grant: it was taken up or released, or it has run out.
function S.settle(h, ran_out)
  if h.untaken then
    h.untaken = false
    local p = S.changed(h.proc)
    if p then
      p.grants = math.max(p.grants - 1, 0)
      p.lapses = ran_out and math.min(p.lapses + 1, 40) or 0
    end
    if ran_out and S.crowd then
      S.crowd.cutoff = math.max(S.crowd.cutoff, h.since)
    end
  end
end

-- extend restarts a hold.
function S.extend(h, span)
  local before = S.end_member(h)
  S.settle(h, false)
  h.span, h.ends = span, S.now + span
  S.put(h, before)
end

-- members calls f for each member of the order from one to another, until f returns true. It reads
-- n of them first, and then more at a time.
function S.members(from, to, n, f)
  local offset = 0
  while true do
    local some = redis.call('ZRANGEBYLEX', KEYS[S.base + 1], from, to, 'LIMIT', offset, n)
    for _, member in ipairs(some) do
      if not S.removed[member] and f(member) then
        return
      end
    end
    if #some < n then
      return
    end
    offset, n = offset + n, math.min(16 * n, CHUNK)
  end
end

-- step_back corrects the state after the server's clock has stepped back, which must not extend
-- anything.
function S.step_back()
  S.dirty = true
  S.crowd.seen, S.crowd.cutoff, S.crowd.stale = S.now, math.min(S.crowd.cutoff, S.now), S.now
  S.crowd.longest, S.crowd.soonest = 0, NEVER
  S.members('[e', '(f', CHUNK, function(member)
    local h = S.hold_of(string.sub(member, 18))
    if h then
      h.ends, h.since = math.min(h.ends, S.now + h.span), math.min(h.since, S.now)
      S.put(h, member)
    else
      S.removed[member] = true
    end
  end)
  for _, name in ipairs(redis.call('HKEYS', KEYS[S.base + 3])) do
    S.process_of(name)
  end
end

-- expire ends holds that have run out, at most 128.
function S.expire()
  if S.only then
    S.dirty = S.only.ends > S.now + S.only.span -- the clock stepped back
    S.only.ends, S.only.since = math.min(S.only.ends, S.now + S.only.span), math.min(S.only.since, S.now)
    if S.only.ends <= S.now then
      local h = S.only
      S.settle(h, true)
      S.remove_hold(h)
    end
  end
  if not S.crowd then
    return
  end
  if S.now < S.crowd.seen then
    S.step_back()
  end
  S.crowd.seen = S.now
  if S.crowd.holds > 0 and S.crowd.soonest <= S.now then
    local left = 128
    S.crowd.soonest = NEVER
    S.members('[e', '(f', 32, function(member)
      local ends = tonumber(string.sub(member, 2, 17))
      if ends > S.now or left == 0 then
        S.crowd.soonest = math.min(S.crowd.soonest, ends)
        return true
      end
      left = left - 1
      local h = S.hold_of(string.sub(member, 18))
      if h then
        S.settle(h, true)
        S.remove_hold(h)
      end
    end)
  end
end

function S.remove_waiter(member, id)
  S.removed[member], S.unset['q' .. id], S.waiters[id], S.dirty = true, true, false, true
  S.crowd.places = S.crowd.places - 1
end

-- drop removes the waiters of the processes whose names are keys of gone.
function S.drop(gone)
  S.members('[q', '(r', CHUNK, function(member)
    local _, _, name, id = S.split(member)
    if gone[name] then
      S.remove_waiter(member, id)
    end
  end)
  for name in pairs(gone) do
    local p = S.changed(name)
    if p then
      p.places = 0
    end
  end
  S.freed = true
end

-- prune drops the processes that are not alive or, if long is set, those without a heartbeat for
-- GONE at least.
function S.prune(me, long)
  local gone
  S.crowd.stale, S.crowd.kept = S.now + GONE, 0 -- the other keys' expiry is extended, too
  for _, name in ipairs(redis.call('HKEYS', KEYS[S.base + 3])) do
    local p = S.process_of(name)
    local till = p.beat + math.max(GONE, p.span)
    if long and till <= S.now or not long and not S.alive(name, me) then
      gone = gone or {}
      gone[name] = true
      p.lapses = 0
    else
      S.crowd.stale = math.min(S.crowd.stale, till)
    end
  end
  if gone then
    S.drop(gone)
  end
end

-- waiter_of returns the waiter of an ID.
function S.waiter_of(id)
  local w = S.waiters[id]
  if w == nil then
    local text = S.crowd and S.crowd.places > 0 and redis.call('HGET', KEYS[S.base + 2], 'q' .. id)
    w = false
    if text then
      local reserve, place, weight, limit, span, since, wanted, rest = string.match(text, WAITER)
      w = reserve and {
        id = id, reserve = tonumber(reserve), place = tonumber(place), weight = tonumber(weight), limit = tonumber(limit),
        span = tonumber(span), since = tonumber(since), fences = tonumber(wanted), proc = string.sub(rest, 1, 16),
        label = string.sub(rest, 17),
      } or false
    end
    S.waiters[id] = w
  end
  return w
end

function S.put_waiter(w)
  S.waiters[w.id] = w
  S.set['q' .. w.id] = string.format(WAITING, w.reserve, w.place, w.weight, w.limit, w.span, w.since, w.fences) ..
    w.proc .. w.label
  S.crowd.limit = math.max(S.crowd.limit, w.limit)
end

-- withdraw removes a waiter.
function S.withdraw(w)
  S.remove_waiter(S.waiter_member(w.reserve, w.place, w.proc, w.id), w.id)
  local p = S.changed(w.proc)
  if p then
    p.places = math.max(p.places - 1, 0)
  end
  S.freed = true
end

-- push adds a line to the message to a process.
function S.push(name, line)
  local lines = S.pushes[name]
  if not lines then
    lines = {}
    S.pushes[name] = lines
  end
  lines[#lines + 1] = line
end

-- grant grants a waiter's request for a short time, and pushes the grant.
function S.grant(w)
  local p = S.changed(w.proc)
  local span = math.min(GRANT * 2 ^ p.lapses, w.span)
  local first, final = fences(S.largest, S.now, w.fences)
  S.largest = final
  p.places, p.grants = p.places - 1, p.grants + 1
  S.add_hold({first = first, last = final, ends = S.now + span, span = span, since = S.now, weight = w.weight, place = w.place,
    untaken = true, id = w.id, proc = w.proc, label = w.label})
  S.push(w.proc, 'lease ' .. w.id .. string.format(PUSHED, first, final, w.place, span) .. p.token ..
    ' ' .. KEYS[S.base])
end

-- admit grants the waiters that the rule allows: see package store. me is the calling process.
function S.admit(me)
  if not S.crowd or not S.freed then
    return
  end
  S.freed = false
  if S.crowd.places == 0 then
    S.crowd.limit = 0
    return
  end
  local ahead, blocked, gone, grants = S.used, nil, nil, 0
  S.members('[q', '(r', 1, function(member)
    local reserve, _, name, id = S.split(member)
    if ahead >= S.crowd.limit then
      return true
    elseif gone and gone[name] then
      return false
    end
    local w = S.waiter_of(id)
    if not w then
      S.remove_waiter(member, id)
    elseif w.weight > w.limit then
      S.withdraw(w)
    elseif reserve == blocked or ahead + w.weight > w.limit then
      ahead, blocked = ahead + w.weight, reserve
    elseif not S.alive(name, me) then
      gone = gone or {}
      gone[name] = true
    elseif grants == MOST_GRANTS or name ~= me and S.process_of(name).grants >= MOST_GRANTS then
      if grants > 0 then
        S.push(name, 'beat ' .. KEYS[S.base]) -- its heartbeat continues
      end
      return true
    else
      S.remove_waiter(member, id)
      S.grant(w)
      ahead, grants = ahead + w.weight, grants + 1
    end
    return ahead >= S.crowd.limit
  end)
  if gone then
    S.drop(gone)
  end
  S.freed = false
end

-- in_chunks calls a command with a list of arguments.
function S.in_chunks(command, target, list)
  for i = 1, #list, 1000 do
    redis.call(command, target, unpack(list, i, math.min(i + 999, #list)))
  end
end

-- save writes the state, and publishes.
function S.save(linger)
  local order, items, names = KEYS[S.base + 1], KEYS[S.base + 2], KEYS[S.base + 3]
  if S.wipe then
    redis.call('DEL', order, items, names)
  end
  if S.crowd then
    -- Additions come first: a key that becomes empty is deleted, and loses its expiry.
    local more, less = {}, {}
    for name, p in pairs(S.processes) do
      if p and p.changed then
        if p.places + p.grants + p.lapses > 0 then
          more[#more + 1] = name
          more[#more + 1] = string.format(PROCESSED, p.till, p.span, p.beat, p.places, p.grants, p.lapses) ..
            (p.pushed and 'P' or '-') .. p.token
          S.fresh = S.fresh or p.new
        else
          less[#less + 1] = name
          S.crowd.processes = S.crowd.processes - 1
        end
      end
    end
    S.in_chunks('HSET', names, more)
    S.in_chunks('HDEL', names, less)
    more, less = {}, {}
    for field, value in pairs(S.set) do
      more[#more + 1] = field
      more[#more + 1] = value
    end
    for field in pairs(S.unset) do
      less[#less + 1] = field
    end
    S.in_chunks('HSET', items, more)
    S.in_chunks('HDEL', items, less)
    more, less = {}, {}
    for member in pairs(S.added) do
      more[#more + 1] = '0'
      more[#more + 1] = member
    end
    for member in pairs(S.removed) do
      less[#less + 1] = member
    end
    S.in_chunks('ZADD', order, more)
    S.in_chunks('ZREM', order, less)
    if S.crowd.holds + S.crowd.places + S.crowd.processes == 0 then
      S.crowd = nil
    else
      local until_ = math.max(S.crowd.longest, S.now + KEPT)
      if S.fresh or S.crowd.kept < until_ then
        S.crowd.kept = until_ + KEPT
        local ms = string.format(INT, math.ceil((S.crowd.kept - S.now) / 1000))
        redis.call('PEXPIRE', order, ms)
        redis.call('PEXPIRE', items, ms)
        redis.call('PEXPIRE', names, ms)
      end
    end
  end
  if not S.only and not S.crowd and not S.late and linger == 0 then
    redis.call('DEL', KEYS[S.base])
  else
    local flags, parts, named = 0, '', ''
    if S.crowd then
      local c = S.crowd
      flags, parts = CROWD, string.format(COUNTED, c.seen, c.kept, c.stale, S.only and S.only.ends or c.soonest, S.used, c.limit, c.longest,
        c.cutoff, c.number, c.holds, c.places, c.processes)
    end
    if S.only then
      flags, parts = flags + HELD, parts .. S.text_of(S.only)
    end
    if flags > 0 then
      named = S.key
    elseif S.released then
      flags, parts = RELEASED, S.released.answer .. string.format(':' .. INT .. ':', S.released.fence) .. S.released.id
    end
    if S.late then
      flags = flags + LATE
    end
    local ends = math.max(S.only and S.only.ends or 0, S.crowd and S.crowd.kept or 0, S.late and S.now + LATE_FOR or 0, S.largest, S.now)
    redis.call('SET', KEYS[S.base], string.format('L%x' .. INT .. ':%d:', flags, S.largest, #named) .. named .. parts,
      'PX', string.format(INT, math.ceil((ends - S.now) / 1000) + math.max(linger, 1000)))
  end
  for name, lines in pairs(S.pushes) do -- last, and without effect if an ACL forbids it
    redis.pcall('PUBLISH', S.channel(name), table.concat(lines, '\n'))
  end
end
