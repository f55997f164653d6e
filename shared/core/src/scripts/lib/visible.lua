-- visible: a copy that its group could deliver, after `streams.lua`: in retry, parked, in the backlog, or ready.

-- Finds a copy for a late call. Returns false, its message, its key, and its member or entry. Otherwise returns the outcome:
-- 'waiting'; or 'unknown'; or 'held', if it is with a consumer, in garbage, or behind 100 others, or if a caller chose its id:
-- such an id can be that of another message by now.
local AHEAD = 100
local function find_late(g, id)
  local m, where = locate(id)
  if where then
    return where
  end
  -- The first flag of a record.
  local flags = string.byte(redis.call('HGET', PAYLOAD, id), 2)
  if not flags or flags % 2 == 1 then
    return 'held'
  end
  for key, text in pairs({[g.retry] = member(m), [g.parked] = parked_member(m), [g.backlog] = backlog_member(m)}) do
    if redis.call('ZSCORE', key, text) then
      return false, m, key, text
    end
  end
  local delivered = g.stream > 0 and last_delivered(g)
  for _, entry in ipairs(delivered and redis.call('XRANGE', g.ready, '(' .. delivered, '+', 'COUNT', AHEAD) or {}) do
    if by_names(entry[2]).i == id then
      return false, m, g.ready, entry[1]
    end
  end
  return 'held'
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
