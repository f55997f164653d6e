#!lua flags=allow-oom
-- unregister: takes a removed topic out of the registry, so that every process forgets it.
--
-- KEYS[1] topics   hash    loses the topic; the registry's version changes
-- KEYS[2] snapshot hash    loses its counts
-- ARGV[1] topic    name    the topic
-- ARGV[2] epoch    count   its last epoch
--
-- Returns 'unregistered' or 'same' (it is not listed, or was created again).
-- Cost O(1).
-- Safe to repeat, even late.
local TOPICS, SNAPSHOT = KEYS[1], KEYS[2]
local topic, epoch = ARGV[1], tonumber(ARGV[2])

local there = string.match(redis.call('HGET', TOPICS, topic) or '', ' (%d+)$')
if not there or tonumber(there) > epoch then
  return {'same'}
end
redis.call('HDEL', TOPICS, topic)
redis.call('HDEL', SNAPSHOT, topic)
redis.call('HINCRBY', TOPICS, ':version', 1)
return {'unregistered'}
