#!lua flags=allow-oom
-- vacate: removes the keys of a shard that has handed everything over.
--
-- ARGV[3] next     text    what the topic's first shard keeps, so that the others are found: number of the shard to ask
--                          next, or a later one that it has already; empty for any other
-- The last of KEYS is `leaving`.
--
-- Returns 'vacated', 1 if it is gone, 0 if something is left in it.
-- Cost O(groups).
-- Safe to repeat: the topic is undeclared here then.
local next = ARGV[3]

survey_all()
local left = size.payload + size.waiting + size.tomb + redis.call('HLEN', KEYS[#KEYS])
for _, g in ipairs(groups) do
  left = left + g.stream
end
if left > 0 or not conf.closed then
  return {'vacated', 0}
end
local kept = redis.call('HMGET', CONF, 'next', 'vacating')
redis.call('DEL', unpack(KEYS))
if next ~= '' then
  -- The topic may have been resharded again, unknown to the caller.
  redis.call('HSET', CONF, 'next', math.max(tonumber(next), tonumber(kept[1]) or 0))
  if kept[2] then
    redis.call('HSET', CONF, 'vacating', kept[2])
  end
end
return {'vacated', 1}
