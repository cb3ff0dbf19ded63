-- The record of an operation; records.go has its layout.

-- read_record returns the parts of a record, given its head or more; nil if there is none, or if
-- its layout is unknown. tail is the position after the holder, where the data begin.
local function read_record(text)
  if #text < 162 or not string.find(text, '^3[FRCNU][012][01]') or not string.find(string.sub(text, 70, 162), '^%d+$') then
    return nil
  end
  local tail = 163 + tonumber(string.sub(text, 160, 162))
  if tail > 675 then
    return nil
  end
  local state = string.sub(text, 2, 2)
  return {
    state = state, in_flight = state == 'F' or state == 'R', effects = string.sub(text, 3, 3), prior = string.sub(text, 4, 4),
    owner = string.sub(text, 5, 26), fingerprint = string.sub(text, 27, 69), number = tonumber(string.sub(text, 70, 77)),
    ends = tonumber(string.sub(text, 78, 93)), length = tonumber(string.sub(text, 94, 109)), status = tonumber(string.sub(text, 110, 113)),
    slice = string.sub(text, 114, 126), created = string.sub(text, 127, 142), changed = string.sub(text, 143, 158),
    watched = string.sub(text, 159, 159), tail = tail,
  }
end

-- next_step returns the name of the step at a position of a record, and the positions of its data
-- and of the next step; nil at the end.
local function next_step(text, at)
  local name, data = string.match(text, '^(%d%d%d)(%d%d%d%d%d%d%d)', at)
  if not name then
    return nil
  end
  local from = at + 10 + tonumber(name)
  return string.sub(text, at + 10, from - 1), from, from + tonumber(data)
end
