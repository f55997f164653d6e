#!lua flags=allow-oom
-- drop_keys: removes the keys of a retired shard after all its messages have migrated.
--
-- ARGV[3] next     text    for the topic's first shard, which keeps it so that the newer shards are found: the shard to ask
--                          next, or a later one that it already has; empty for any other shard
-- The last of KEYS is `in_transit`.
--
-- Returns 'dropped', 1 if the shard is gone, 0 if something is left in it.
-- Cost O(groups).
-- Safe to repeat: the topic is then undeclared here.
local next = ARGV[3]

read_all_sizes()
local left = size.payload + size.waiting + size.tomb + redis.call('HLEN', KEYS[#KEYS])
for _, g in ipairs(groups) do
  left = left + g.stream
end
if left > 0 or not conf.closed then
  return {'dropped', 0}
end
local kept = redis.call('HMGET', CONF, 'next', 'retired')
redis.call('DEL', unpack(KEYS))
if next ~= '' then
  -- The topic may have been resharded again without the caller's knowledge.
  redis.call('HSET', CONF, 'next', math.max(tonumber(next), tonumber(kept[1]) or 0))
  if kept[2] then
    redis.call('HSET', CONF, 'retired', kept[2])
  end
end
return {'dropped', 1}
