#!lua flags=allow-oom
-- take_parked: delivers parked messages, in the order of their keys, to the consumer that has just read their holders.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] consumer name    the consumer
-- ARGV[5] most     count   most deliveries in all, with the holders, 1 to 200
-- ARGV[6] each     count   most deliveries of a key, with its holder, 1 to 200
-- ARGV[7] items    pairs   entry id, message id: deliveries that the consumer holds, in order; at most `most`
--
-- Returns 'taken', and the number of deliveries that the consumer keeps, the first ones; then six values for each message: its
--   new entry, its id, its due time, the number of its attempt, its crashes, and the time at which it expires or -1.
-- Cost O(n log N).
-- Safe to repeat: the second time nothing is delivered, since the holder is no longer alone. What nobody got comes again
-- after its lease.
--
-- The messages behind the first holder come first, then the second holder, and so on. A holder for which no place is left is ready
-- again. The new entries are the next ones that the group reads: what is ready and unread goes behind them, in its order. The
-- script does nothing while more than 16 are ready, or while a gate decides what is delivered.
local g, consumer = read_sizes(groups[tonumber(ARGV[3])]), ARGV[4]
local most, each, count_of_items = tonumber(ARGV[5]), tonumber(ARGV[6]), (#ARGV - 6) / 2
local MOST_READY = 16

local delivered = g.parked_count > 0 and not is_gated(g) and last_delivered(g)
local ready = delivered and redis.call('XRANGE', g.ready, '(' .. delivered, '+', 'COUNT', MOST_READY + 1)
if not ready or #ready > MOST_READY then
  return {'taken', count_of_items}
end
for i, entry in ipairs(ready) do
  ready[i] = by_names(entry[2])
  ready[i].entry = entry[1]
  if not ready[i].i then
    return {'taken', count_of_items}
  end
end
local kept, sent, is_aside = 0, 0, false
budget = most
-- Reads what is ready, so that what is sent now is next, and removes it from the stream.
local function set_aside()
  if is_aside or #ready == 0 then
    return
  end
  is_aside = true
  redis.call('XREADGROUP', 'GROUP', g.name, consumer, 'COUNT', #ready, 'NOACK', 'STREAMS', g.ready, '>')
  local entries = {}
  for i, fields in ipairs(ready) do
    entries[i] = fields.entry
  end
  redis.call('XDEL', g.ready, unpack(entries))
  g.stream = g.stream - #ready
end
-- Takes what is behind the holder of a key.
local function follow(m, entry)
  local room = math.min(each - 1, most - kept - sent, budget)
  if room <= 0 or m.key == '' or holder(g, m.key) ~= m.id or #redis.call('XPENDING', g.ready, g.name, entry, entry, 1) == 0 then
    return
  end
  local heads = redis.call('ZRANGE', g.parked, '[' .. m.key .. '\0', '(' .. m.key .. '\1', 'BYLEX', 'LIMIT', 0, room)
  local holders, ids = ' ' .. m.id .. ' ', {}
  for n, head in ipairs(heads) do
    ids[n] = string.sub(head, #m.key + 28)
  end
  if #ids > 0 then
    set_aside()
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
while kept < count_of_items and kept + sent < most do
  local entry, id = ARGV[7 + 2 * kept], ARGV[8 + 2 * kept]
  kept = kept + 1
  follow(message(id), entry)
end
-- Those without a place, then those that were set aside.
for i = kept + 1, count_of_items do
  local entry, m = ARGV[5 + 2 * i], message(ARGV[6 + 2 * i])
  local fields = redis.call('XACK', g.ready, g.name, entry) == 1 and read_entry(g.ready, entry)
  if fields then
    redis.call('XDEL', g.ready, entry)
    g.stream = g.stream - 1
    emit(g, m, tonumber(fields.d))
  end
end
if is_aside then
  for _, fields in ipairs(ready) do
    emit(g, message(fields.i), tonumber(fields.d))
  end
end
finish()

local reply = {'taken', kept}
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
