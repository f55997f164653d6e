#!lua flags=allow-oom
-- redirect: points processes that look for a topic at its first shard to newer shards.
--
-- KEYS[1] conf     hash    gets next
-- ARGV[1] next     number  the shard to ask next
--
-- Returns 'redirected'.
-- Cost O(1).
-- Safe to repeat, even late: it leads to newer shards only.
local CONF = KEYS[1]
local next = tonumber(ARGV[1])

if next > (tonumber(redis.call('HGET', CONF, 'next')) or 0) then
  redis.call('HSET', CONF, 'next', next)
end
return {'redirected'}
