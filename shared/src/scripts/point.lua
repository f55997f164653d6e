#!lua flags=allow-oom
-- point: lets those who look for a topic at its first shard go on from there to newer ones.
--
-- KEYS[1] conf     hash    gets next
-- ARGV[1] next     number  shard to ask next
--
-- Returns 'pointed'.
-- Cost O(1).
-- Safe to repeat, and late: it leads to newer shards only.
local CONF = KEYS[1]
local next = tonumber(ARGV[1])

if next > (tonumber(redis.call('HGET', CONF, 'next')) or 0) then
  redis.call('HSET', CONF, 'next', next)
end
return {'pointed'}
