#!lua flags=allow-oom
-- remove_group: removes a retiring group. If it is to be dropped, it first drops the group's messages, in batches.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] batch    count   most messages to drop, 1 to 50
--
-- Returns 'removed', messages dropped, the new epoch; or 'more', messages dropped (call again); or 'kept' (it is not
--   retiring; or it drains and still has messages, or may get some from another shard).
-- Cost O(n log N).
-- Safe to repeat.
local g, batch = groups[tonumber(ARGV[3])], tonumber(ARGV[4])

local how = conf['retiring:' .. g.name]
if not how then
  return {'kept'}
end
-- While messages migrate in from other shards, some may belong to this group.
local takes_over = tonumber(redis.call('HGET', CONF, 'previous'))
if takes_over and how ~= 'drop' then
  return {'kept'}
end
read_sizes(g)
local epoch = redis.call('HGET', CONF, 'epoch')
local dropped = 0
local function drop(id)
  local m = message(id)
  end_copy(g, m, 'dropped')
  -- No message is parked by now, so the key has no holder afterwards.
  release(g, m)
  dropped = dropped + 1
end
if how == 'drop' then
  local function take(zset, from, and_then)
    local found = dropped < batch and redis.call('ZRANGE', zset, 0, batch - dropped - 1) or {}
    for _, text in ipairs(found) do
      and_then(from(text))
    end
    if #found > 0 then
      redis.call('ZREMRANGEBYRANK', zset, 0, #found - 1)
    end
    return #found
  end
  -- Drops parked messages first, and nothing else until the last of them is gone. So a group that is kept after all still
  -- has a holder for each key whose messages are parked.
  g.parked_count = g.parked_count - take(g.parked, function(text)
    return string.match(text, '^[^%z]*%z' .. string.rep('%d', 26) .. '(.*)$')
  end, function(id)
    end_copy(g, message(id), 'dropped')
    dropped = dropped + 1
  end)
  g.retries = g.retries - take(g.retry, id_of, drop)
  g.gated = g.gated - take(g.backlog, function(text) return string.sub(text, 27) end, drop)
  local entries = {}
  if dropped < batch then
    for i, entry in ipairs(redis.call('XRANGE', g.ready, '-', '+', 'COUNT', batch - dropped)) do
      local id = read_entry(g.ready, entry[1]).i
      entries[i] = entry[1]
      if id then
        drop(id)
      end
    end
  end
  if #entries > 0 then
    -- A consumer that holds one must find its delivery stale.
    redis.call('XACK', g.ready, g.name, unpack(entries))
    redis.call('XDEL', g.ready, unpack(entries))
    g.stream = g.stream - #entries
  end
  g.garbage_count = g.garbage_count - take(g.garbage, id_of, function(id)
    redis.call('HDEL', g.garbage_info, id)
    redis.call('ZREM', g.garbage_hook, id)
    drop(id)
  end)
end
if g.stream + g.retries + g.gated + g.parked_count + g.garbage_count > 0 then
  -- A dropped holder has no successor, so nothing is pumped here.
  flush()
  return {how == 'drop' and 'more' or 'kept', dropped}
end
flush()
for _, key in ipairs({g.ready, g.retry, g.attempts, g.backlog, g.parked, g.holder, g.garbage, g.garbage_info, g.garbage_hook}) do
  redis.call('DEL', key)
end
-- Its counters are kept under '-', summed over all removed groups.
local totals, names = redis.call('HGETALL', STATS), {}
for i = 1, #totals, 2 do
  local what = string.match(totals[i], '^(.*):' .. string.gsub(g.name, '%-', '%%-') .. '$')
  if what then
    names[#names + 1] = totals[i]
    if what ~= 'tat' then
      redis.call('HINCRBY', STATS, what .. ':-', totals[i + 1])
    end
  end
end
if #names > 0 then
  redis.call('HDEL', STATS, unpack(names))
end
local rest = {}
for _, other in ipairs(groups) do
  if other ~= g then
    rest[#rest + 1] = other.name
  end
end
redis.call('HDEL', CONF, 'retiring:' .. g.name, 'paused:' .. g.name, 'garbage_hook:' .. g.name, 'instance:' .. g.name)
redis.call('HSET', CONF, 'groups', table.concat(rest, ' '), 'epoch', epoch + 1)
return {'removed', dropped, epoch + 1}
