-- Returns the id of the last entry delivered to a group, or nil if the stream or the group does not exist.
local function last_delivered(g)
  local infos = redis.pcall('XINFO', 'GROUPS', g.ready)
  for _, info in ipairs(infos.err and {} or infos) do
    local found = {}
    for i = 1, #info, 2 do
      found[info[i]] = info[i + 1]
    end
    if found.name == g.name then
      return found['last-delivered-id']
    end
  end
end
