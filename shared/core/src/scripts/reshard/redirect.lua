#!lua flags=allow-oom
-- redirect: points processes that look for a topic at its first shard to newer shards.
--
-- KEYS[1] conf     hash    gets next
-- ARGV[1] next     number  the shard to ask next
-- ARGV[2] restores flag    1 to restore a lost topic: writes only if this shard is not declared and does not redirect yet
--
-- Returns 'redirected' and the shard to ask next, or 0 if this one does not redirect.
-- Cost O(1).
-- Safe to repeat, even late: it leads to newer shards only. Of the processes that restore a topic, the first decides on which shards.
local CONF = KEYS[1]
local next, restores = tonumber(ARGV[1]), ARGV[2] == '1'

local conf = redis.call('HMGET', CONF, 'next', 'epoch')
local there = tonumber(conf[1]) or 0
if next <= there or restores and (conf[1] or conf[2]) then
  return {'redirected', there}
end
redis.call('HSET', CONF, 'next', next)
return {'redirected', next}
