#!lua flags=allow-oom
-- register: lists a topic in the registry, so that every process can find it.
--
-- KEYS[1] topics     hash    topic -> "<shards> <epoch>", and the registry's version
-- ARGV[1] topic      name    the topic
-- ARGV[2] entry      text    "<shards> <epoch>"
-- ARGV[3] if_missing flag    1 to keep an entry that is there
--
-- Returns 'registered' or 'same'.
-- Cost O(1).
-- Safe to repeat.
local TOPICS = KEYS[1]
local topic, entry, if_missing = ARGV[1], ARGV[2], ARGV[3] == '1'

local there = redis.call('HGET', TOPICS, topic)
if there and (if_missing or there == entry) then
  return {'same'}
end
redis.call('HSET', TOPICS, topic, entry)
redis.call('HINCRBY', TOPICS, ':version', 1)
return {'registered'}
