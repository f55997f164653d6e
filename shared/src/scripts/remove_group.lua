#!lua flags=allow-oom
-- remove_group: removes a retiring group; first, in batches, what it still has if it shall be dropped.
--
-- ARGV[3] group    number  consumer group, as its place among all groups, from 1
-- ARGV[4] batch    count   most messages to drop, 1 to 50
--
-- Returns 'removed', messages dropped, the new epoch; or 'more', messages dropped (call again); or 'kept' (it is not
--   retiring, or drains and still has something, or may get it from another shard).
-- Cost O(n log N).
-- Safe to repeat.
local g, batch = groups[tonumber(ARGV[3])], tonumber(ARGV[4])

local how = conf['retiring:' .. g.name]
if not how then
  return {'kept'}
end
-- A shard that takes over from others is given what the group has there.
local takes_over = tonumber(redis.call('HGET', CONF, 'previous'))
if takes_over and how ~= 'drop' then
  return {'kept'}
end
survey(g)
local epoch = redis.call('HGET', CONF, 'epoch')
local dropped = 0
local function drop(id)
  local m = message(id)
  end_copy(g, m, 'dropped')
  -- Nothing is parked any more: its key has no holder then.
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
  -- First what is parked, and nobody else before the last of it is gone: a group that is kept after some of it was
  -- dropped has a holder for each key whose messages are still parked.
  g.parked = g.parked - take(g.lane, function(text)
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
    -- Whoever holds one must find that it is not his any more.
    redis.call('XACK', g.ready, g.name, unpack(entries))
    redis.call('XDEL', g.ready, unpack(entries))
    g.stream = g.stream - #entries
  end
  g.buried = g.buried - take(g.garbage, id_of, function(id)
    redis.call('HDEL', g.dead, id)
    redis.call('ZREM', g.notices, id)
    drop(id)
  end)
end
if g.stream + g.retries + g.gated + g.parked + g.buried > 0 then
  -- Nobody follows a holder that was dropped, so nothing is pumped here.
  flush()
  return {how == 'drop' and 'more' or 'kept', dropped}
end
flush()
for _, key in ipairs({g.ready, g.retry, g.attempts, g.backlog, g.lane, g.holder, g.garbage, g.dead, g.notices}) do
  redis.call('DEL', key)
end
-- What it counted is kept under '-', for all groups that are gone.
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
redis.call('HDEL', CONF, 'retiring:' .. g.name, 'paused:' .. g.name, 'notices:' .. g.name, 'instance:' .. g.name)
redis.call('HSET', CONF, 'groups', table.concat(rest, ' '), 'epoch', epoch + 1)
return {'removed', dropped, epoch + 1}
