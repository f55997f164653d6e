#!lua flags=allow-oom
-- ack: ends handled deliveries of any topic and releases the next messages of their ordering keys.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] count    count   deliveries, at most 100
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

-- Does what `end_copy` does for each delivery, but with one command for each kind of change. Nothing can be merged into a
-- delivered message, so `unmerge` has nothing to do.
local packed = size.meta > 0 and redis.call('HMGET', META, unpack(ids)) or {}
local owing = size.left > 0 and redis.call('HMGET', LEFT, unpack(ids))
local keyed, keys, tombs, freed, unranked = {}, {}, {}, 0, 0
local score = whole(now * 4)
count('acked:' .. g.name, #ids)
for i, id in ipairs(ids) do
  local meta, key, priority, bytes, merge, is_survivor, _ = packed[i]
  if meta then
    _, priority, key, merge, _, _, bytes, is_survivor = metas.unpack(meta)
    if key ~= '' then
      keyed[#keyed + 1], keys[#keys + 1] = id, key
    end
  end
  local n = owing and (left[id] or tonumber(owing[i])) or 1
  if owing then
    set_owed(id, n - 1)
  end
  if n <= 1 then
    gone[#gone + 1] = id
    if is_caller[id] or is_survivor then
      tombs[#tombs + 1], tombs[#tombs + 2] = score, id
    end
    if meta then
      gone_meta[#gone_meta + 1] = id
      if key ~= '' and size.bykey > 0 then
        gone_keys[#gone_keys + 1] = key .. '\0' .. id
      end
      freed = freed + bytes
      if priority ~= 0 or merge ~= '' then
        unranked = unranked + 1
      end
    end
  end
end
if freed > 0 then
  count('bytes', -freed)
end
if unranked > 0 then
  count('ranked', -unranked)
end
if g.tried > 0 then
  g.untried = ids
end
if #tombs > 0 then
  redis.call('ZADD', TOMB, unpack(tombs))
end
budget = #ids + 20
release_all(g, keyed, keys)
finish()
return reply
