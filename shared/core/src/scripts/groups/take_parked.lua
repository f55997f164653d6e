#!lua flags=allow-oom
-- take_parked: delivers parked messages, in the order of their keys, to the consumer that has just read their holders.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] consumer name    the consumer
-- ARGV[5] most     count   most messages to deliver, 1 to 200
-- ARGV[6] each     count   most messages of a key to deliver, 1 to 200
-- ARGV[7] items    pairs   entry id, message id: deliveries that the consumer holds; at most 200
--
-- Returns 'taken', then six values for each message: its new entry, its id, its due time, the number of its attempt, its
--   crashes, and the time at which it expires or -1.
-- Cost O(n log N).
-- Safe to repeat: the second time nothing is delivered, since the holder is no longer alone. What nobody got comes again
-- after its lease.
--
-- The new entries are the next ones that the group reads, because it does nothing while others are ready. So a consumer takes
-- what is ready first. It does nothing either while a gate decides what is delivered.
local g, consumer = read_sizes(groups[tonumber(ARGV[3])]), ARGV[4]
local most, each = tonumber(ARGV[5]), tonumber(ARGV[6])

local delivered = g.parked_count > 0 and not is_gated(g) and last_delivered(g)
if not delivered or #redis.call('XRANGE', g.ready, '(' .. delivered, '+', 'COUNT', 1) > 0 then
  return {'taken'}
end
local sent = 0
budget = most
for i = 7, #ARGV, 2 do
  local entry, m = ARGV[i], message(ARGV[i + 1])
  local room = math.min(each, most - sent, budget)
  if room > 0 and m.key ~= '' and holder(g, m.key) == m.id and #redis.call('XPENDING', g.ready, g.name, entry, entry, 1) > 0 then
    local heads = redis.call('ZRANGE', g.parked, '[' .. m.key .. '\0', '(' .. m.key .. '\1', 'BYLEX', 'LIMIT', 0, room)
    local holders, ids = ' ' .. m.id .. ' ', {}
    for n, head in ipairs(heads) do
      ids[n] = string.sub(head, #m.key + 28)
    end
    prefetch(ids)
    for n, id in ipairs(ids) do
      redis.call('ZREM', g.parked, heads[n])
      g.parked_count = g.parked_count - 1
      if emit(g, message(id)) then
        holders, sent = holders .. id .. ' ', sent + 1
      end
    end
    if #holders > #m.id + 2 then
      redis.call('HSET', g.holder, m.key, holders)
    end
  end
end
finish()

local reply = {'taken'}
if sent > 0 then
  local read = redis.call('XREADGROUP', 'GROUP', g.name, consumer, 'COUNT', sent, 'STREAMS', g.ready, '>')
  for _, entry in ipairs(read[1][2]) do
    local fields = by_names(entry[2])
    for _, value in ipairs({entry[1], fields.i, fields.d, fields.a or 1, fields.c or 0, fields.x or -1}) do
      reply[#reply + 1] = value
    end
  end
end
return reply
