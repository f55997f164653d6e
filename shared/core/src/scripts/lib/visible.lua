-- visible: a copy that its group could deliver, after `streams.lua`: in retry, parked, in the backlog, or ready.

-- Returns whether a caller chose the id of a stored message: it can be that of another message by now.
local function has_own_id(m)
  -- The first flag of a record.
  local flags = string.byte(redis.call('HGET', PAYLOAD, m.id), 2)
  return not flags or flags % 2 == 1
end

-- Finds a copy. Returns its key and its member or entry; or nil if it is with a consumer, in garbage, or behind 100 others.
local AHEAD = 100
local function find_visible(g, m)
  for key, text in pairs({[g.retry] = member(m), [g.parked] = parked_member(m), [g.backlog] = backlog_member(m)}) do
    if redis.call('ZSCORE', key, text) then
      return key, text
    end
  end
  local delivered = g.stream > 0 and last_delivered(g)
  for _, entry in ipairs(delivered and redis.call('XRANGE', g.ready, '(' .. delivered, '+', 'COUNT', AHEAD) or {}) do
    if by_names(entry[2]).i == m.id then
      return g.ready, entry[1]
    end
  end
end

-- Removes a copy that was found, from its key. Its group then has room for another one.
local function take_visible(g, key, text)
  if key == g.ready then
    g.stream = g.stream - 1
    redis.call('XDEL', key, text)
    return
  elseif key == g.backlog then
    g.gated = g.gated - 1
  end
  redis.call('ZREM', key, text)
end
