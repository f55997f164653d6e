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
local g = read_sizes(groups[tonumber(ARGV[3])])

local outcome, m, key, text = find_late(g, ARGV[4])
if outcome then
  return {outcome}
end
take_visible(g, key, text)
end_copy(g, m, 'acked', m.is_survivor and 0 or nil)
unmerge(m)
release(g, m)
finish()
return {'acked'}
