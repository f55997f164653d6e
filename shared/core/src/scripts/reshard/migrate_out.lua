#!lua flags=allow-oom
-- migrate_out: takes messages out of a retiring shard, for its successors. The first call closes the shard: it
-- no longer delivers or stores anything new.
--
-- ARGV[3] done     number  the batch that has migrated in and can be forgotten, 0 for none
-- ARGV[4] refused  ids     those of that batch that come back, separated by spaces
-- ARGV[5] ids      ids     messages to take out next, at most 50, fewer if they are large; with none, unread entries are
--                          withdrawn from the streams
-- The last of KEYS is `in_transit`, a hash: id -> bundle, and \1 with a field of `merge` -> id; of one batch.
--
-- Returns 'migrating', the batch, the arrivals so far, the watermark, the time up to which each group's rate is used up
--   (name and time, separated by spaces), the number of messages and entries left, the number of entries withdrawn;
--   then three for each message of the batch: id, the key that decides its shard or '', bundle.
-- Cost O(n log N) for each group.
-- Safe to repeat: a batch is returned until it is done.
local done, refused, first, IN_TRANSIT = tonumber(ARGV[3]), ARGV[4], 5, KEYS[#KEYS]
-- The most entries to look at in a stream, and the most bytes of a batch of several messages.
local MOST, MOST_BYTES = 50, 262144

read_all_sizes()
redis.call('HLEN', IN_TRANSIT)
local batch = tonumber(redis.call('HGET', CONF, 'batch')) or 0
if not conf.closed then
  -- With `features` set, `clean` does not change the class.
  redis.call('HSET', CONF, 'closed', 1, 'class', 'general', 'features', 1)
  conf.closed, is_shut = '1', true
end

if done == batch and done > 0 then
  for id in string.gmatch(refused, '%S+') do
    local text = redis.call('HGET', IN_TRANSIT, id)
    if text then
      unwrap(id, text)
    end
  end
  redis.call('DEL', IN_TRANSIT)
end
local bundles = redis.call('HGETALL', IN_TRANSIT)
if #bundles == 0 then
  local sizes, bytes = {}, 0
  for i = first, #ARGV do
    sizes[i] = redis.call('HSTRLEN', PAYLOAD, ARGV[i])
  end
  for i = first, #ARGV do
    if bytes > 0 and bytes + sizes[i] > MOST_BYTES then
      break
    end
    local text, scope = wrap(ARGV[i])
    if text then
      bundles[#bundles + 1], bundles[#bundles + 2] = ARGV[i], text
      bytes = bytes + #text
    end
    if scope then
      bundles[#bundles + 1], bundles[#bundles + 2] = '\1' .. scope, ARGV[i]
    end
  end
  if #bundles > 0 then
    -- A failover to a lagging replica can set this shard back in time. Even then no batch number may repeat: it would
    -- count as migrated in.
    batch = math.max(batch + 1, now)
    redis.call('HSET', CONF, 'batch', batch)
    redis.call('HSET', IN_TRANSIT, unpack(bundles))
  end
end

-- Marks the entries of a stream up to `last` as delivered, after they were deleted unread. If a deleted entry is not before the
-- last delivered one, Redis does not know the lag of the group, which other programs may watch. So the group passes `last`, unless
-- the next entry follows immediately.
local function pass(g, info, last)
  local time, number = string.match(last, '^(%d+)-(%d+)$')
  local after = time .. '-' .. whole(number + 1)
  local next = redis.call('XRANGE', g.ready, after, after)[1]
  local added = by_names(redis.call('XINFO', 'STREAM', g.ready))['entries-added']
  local unread = g.stream - info.pending
  redis.call('XGROUP', 'SETID', g.ready, g.name, next and last or after, 'ENTRIESREAD', whole(added - unread))
end

-- An unread entry becomes a retry, due at the entry's own due time.
local withdrawn = 0
if #bundles == 0 and #ARGV < first then
  for _, g in ipairs(groups) do
    local info = g.stream > 0 and group_info(g)
    local unread = info and redis.call('XRANGE', g.ready, '(' .. info['last-delivered-id'], '+', 'COUNT', MOST) or {}
    for _, found in ipairs(unread) do
      local fields = read_entry(g.ready, found[1])
      redis.call('XDEL', g.ready, found[1])
      g.stream = g.stream - 1
      withdrawn = withdrawn + 1
      if fields.i and redis.call('HEXISTS', PAYLOAD, fields.i) == 1 then
        redis.call('ZADD', g.retry, fields.d or now, member(message(fields.i)))
      elseif fields.i then
        end_copy(g, message(fields.i), 'lost')
        release(g, message(fields.i))
      else
        count('lost:' .. g.name)
      end
    end
    if #unread > 0 then
      pass(g, info, unread[#unread][1])
    end
  end
end
flush()

-- The low watermark: nothing due before it will come from here; -1 if nothing will come at all. It is 0 while a key has a
-- holder here, because no later message of that key may be delivered anywhere.
local left, soonest, has_holders = redis.call('HLEN', PAYLOAD) + redis.call('HLEN', IN_TRANSIT), math.huge, false
local function look_into(zset)
  soonest = math.min(soonest, tonumber(redis.call('ZRANGE', zset, 0, 0, 'WITHSCORES')[2]) or math.huge)
end
look_into(WAITING)
local tats = {}
for _, g in ipairs(groups) do
  look_into(g.retry)
  left = left + g.stream
  has_holders = has_holders or redis.call('HLEN', g.holder) + redis.call('ZCARD', g.parked) + redis.call('ZCARD', g.backlog) > 0
  local tat = interval and redis.call('HGET', STATS, 'tat:' .. g.name)
  if tat then
    tats[#tats + 1] = g.name .. ' ' .. tat
  end
end
local watermark = has_holders and 0 or soonest < math.huge and soonest or -1
local reply = {'migrating', batch, arrivals, watermark, table.concat(tats, ' '), left, withdrawn}
for i = 1, #bundles, 2 do
  if string.sub(bundles[i], 1, 1) ~= '\1' then
    for _, value in ipairs({bundles[i], cmsgpack.unpack(bundles[i + 1])[1], bundles[i + 1]}) do
      reply[#reply + 1] = value
    end
  end
end
return reply
