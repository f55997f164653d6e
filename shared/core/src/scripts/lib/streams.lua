-- Returns an array of names and values as a table.
local function by_names(row)
  local found = {}
  for i = 1, #row, 2 do
    found[row[i]] = row[i + 1]
  end
  return found
end

-- Returns what Redis knows of a group, or nil if the stream or the group does not exist.
local function group_info(g)
  local infos = redis.pcall('XINFO', 'GROUPS', g.ready)
  for _, info in ipairs(infos.err and {} or infos) do
    local found = by_names(info)
    if found.name == g.name then
      return found
    end
  end
end

-- Returns the id of the last entry delivered to a group, or nil if the stream or the group does not exist.
local function last_delivered(g)
  local info = group_info(g)
  return info and info['last-delivered-id']
end
