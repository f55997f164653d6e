#!lua flags=allow-oom
-- ack: ends handled deliveries of any topic and releases the next messages of their ordering keys.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] count    count   deliveries, at most 50
-- ARGV[5] items    list    their entry ids, distinct; their message ids; the index (from 1) of each id that a caller chose
--
-- Returns 'acked', then the index (from 1) of each item that was stale.
-- Cost O(n log N).
-- Safe to repeat: the second time all items are stale.
local g, n, first = groups[tonumber(ARGV[3])], tonumber(ARGV[4]), 5

read_sizes(g)
local entries = {unpack(ARGV, first, first + n - 1)}
local ids = {unpack(ARGV, first + n, first + 2 * n - 1)}
local is_caller = {}
for i = first + 2 * n, #ARGV do
  is_caller[ids[tonumber(ARGV[i])]] = true
end
local reply = {'acked'}
if redis.call('XACK', g.ready, g.name, unpack(entries)) < n then
  -- The pending list no longer shows which entries were pending, but the stream does: an entry leaves it together with its
  -- acknowledgement. So an entry that is still there was acknowledged by this call.
  local mine, my_ids = {}, {}
  for i = 1, n do
    if #redis.call('XRANGE', g.ready, entries[i], entries[i]) > 0 then
      mine[#mine + 1], my_ids[#my_ids + 1] = entries[i], ids[i]
    else
      reply[#reply + 1] = i
    end
  end
  entries, ids = mine, my_ids
end
if #ids == 0 then
  return reply
end
redis.call('XDEL', g.ready, unpack(entries))
g.stream = g.stream - #entries
prefetch(ids)
prefetch_owed(ids)
budget = #ids + 20
for _, id in ipairs(ids) do
  local m = message(id)
  end_copy(g, m, 'acked', (is_caller[id] or m.is_survivor) and 0 or nil)
  release(g, m)
end
finish()
return reply
