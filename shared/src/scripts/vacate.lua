#!lua flags=allow-oom
-- vacate: removes the keys of a shard that has handed everything over.
--
-- ARGV[3] next     text    what the topic's first shard keeps, so that the others are found: number of the shard to ask
--                          next; empty for any other
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
-- Another resharding may have led on from here meanwhile.
local newest = tonumber(redis.call('HGET', CONF, 'next')) or 0
redis.call('DEL', unpack(KEYS))
if next ~= '' then
  redis.call('HSET', CONF, 'next', math.max(newest, tonumber(next)))
end
return {'vacated', 1}
