#!lua flags=allow-oom
-- ack: ends handled deliveries of any topic; the next messages of their keys follow.
--
-- ARGV[3] group    number  consumer group, as its place among all groups, from 1
-- ARGV[4] items    triples entry id, message id, 1 if the id is the caller's; at most 200, entries distinct
--
-- Returns 'acked', then the index from 1 of each item that was stale.
-- Cost O(n log N).
-- Safe to repeat: the second time all are stale.
local g, first = groups[tonumber(ARGV[3])], 4
local n = (#ARGV - first + 1) / 3

survey(g)
local entries, ids, callers = {}, {}, {}
for i = 1, n do
  local at = first + (i - 1) * 3
  entries[i], ids[i], callers[i] = ARGV[at], ARGV[at + 1], ARGV[at + 2] == '1'
end
local reply = {'acked'}
if redis.call('XACK', g.ready, g.name, unpack(entries)) < n then
  -- The pending list does not tell any more which were ours, but the stream does: an entry leaves
  -- it together with its acknowledgement, so one that is still there was acknowledged just now.
  local mine, my_ids, my_callers = {}, {}, {}
  for i = 1, n do
    if #redis.call('XRANGE', g.ready, entries[i], entries[i]) > 0 then
      mine[#mine + 1], my_ids[#my_ids + 1], my_callers[#mine + 1] = entries[i], ids[i], callers[i]
    else
      reply[#reply + 1] = i
    end
  end
  entries, ids, callers = mine, my_ids, my_callers
end
if #ids == 0 then
  return reply
end
redis.call('XDEL', g.ready, unpack(entries))
g.stream = g.stream - #entries
prefetch(ids)
prefetch_owed(ids)
budget = #ids + 20
for i, id in ipairs(ids) do
  local m = message(id)
  end_copy(g, m, 'acked', callers[i] and 0 or nil)
  release(g, m)
end
finish()
return reply
