-- Buckets, as bucket_constants describes them. Included after it. The script has read the clock
-- into now, in µs.

-- write writes a bucket: its debt in µs and ns, the interval or the end of the period in which it
-- is counted, and the hold in state.
local function write(key, us, ns, interval, ends, state)
  local owes, left = us + ns > 0, ends and ends - now or us
  if owes or state.held > 0 then
    local time = owes and (ends and us or now + us) or 0
    left = owes and left > state.held and left or state.held
    redis.call('SET', key, string.format(TIME, time, ns, interval, state.hold), 'PX', expiry(left))
  elseif state.exists then
    redis.call('DEL', key)
  end
end

-- read returns the state of a bucket: its debt in µs (us) and ns (ns), the interval as text, the
-- end of its period (ends), for how many µs it is held (held), and the text of its hold (hold). If
-- the clock has stepped back, the debt is larger than it ever was.
local function read(key)
  local value, state = redis.call('GET', key), {us = 0, ns = 0, held = 0, hold = ''}
  if not value then
    return state
  end
  state.exists = true
  -- Arithmetic may read 012 as octal.
  local gone, ns = tonumber(string.sub(value, 1, 16)), tonumber(string.sub(value, 17, 19))
  local interval, rest = string.match(value, '^(@?%d+)(.*)$', 20)
  if not (gone and ns and ns >= 0 and ns < 1000 and interval and #interval < 20) then
    return state
  end
  local ends = tonumber((string.match(value, '^%d+@(%d+)')))
  if not ends and not (tonumber(interval) and tonumber(interval) > 0) or ends and ends > LONGEST then
    return state
  end
  local till, span = string.match(rest, '^ (%d+) (%d+)$')
  if till then
    till, span = tonumber(till), tonumber(span)
    if not (till and span and span <= LONGEST) then
      return state
    end
  elseif rest ~= '' then
    return state
  end
  state.interval = interval
  if ends and ends > now then
    state.us, state.ns, state.ends = gone, ns, ends
  elseif not ends and gone >= now then
    state.us, state.ns = gone - now, ns
  end
  if till and till > now then
    state.held, state.hold = till - now, rest
    if state.held > span then -- The clock has stepped back: the hold begins again.
      state.held, state.hold = span, string.format(HELD, now + span, span)
      pcall(write, key, state.us, state.ns, interval, state.ends, state)
    end
  end
  return state
end
