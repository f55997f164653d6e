#!lua flags=allow-oom
-- ack_late: acknowledges a message whose delivery has ended without its consumer, unless the group has delivered it again.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] id       text    message id
--
-- Returns 'acked'; or 'waiting'; or 'unknown'; or 'held', if it is in flight again, in garbage, or behind 100 others, or if a
--   caller chose its id: such an id can be that of another message by now.
-- Cost O(log N), its record, and 100 entries of the stream.
-- Safe to repeat: the second time it is unknown.
local g, AHEAD = read_sizes(groups[tonumber(ARGV[3])]), 100

local m, where = locate(ARGV[4])
if where then
  return {where}
end
-- The first flag of a record.
local flags = string.byte(redis.call('HGET', PAYLOAD, m.id), 2)
if not flags or flags % 2 == 1 then
  return {'held'}
end
-- Removes the copy from what is ready, and returns whether it was there.
local function remove_ready()
  local delivered = g.stream > 0 and last_delivered(g)
  for _, entry in ipairs(delivered and redis.call('XRANGE', g.ready, '(' .. delivered, '+', 'COUNT', AHEAD) or {}) do
    if by_names(entry[2]).i == m.id then
      g.stream = g.stream - 1
      return redis.call('XDEL', g.ready, entry[1]) == 1
    end
  end
  return false
end
local function remove()
  if redis.call('ZREM', g.retry, member(m)) == 1 or redis.call('ZREM', g.parked, parked_member(m)) == 1 then
    return true
  elseif redis.call('ZREM', g.backlog, backlog_member(m)) == 1 then
    g.gated = g.gated - 1
    return true
  end
  return remove_ready()
end
if not remove() then
  return {'held'}
end
end_copy(g, m, 'acked', m.is_survivor and 0 or nil)
unmerge(m)
release(g, m)
finish()
return {'acked'}
