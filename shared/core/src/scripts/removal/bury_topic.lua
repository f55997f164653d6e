#!lua flags=allow-oom
-- bury_topic: records the removal of a topic at shard 0, where processes look for it, if the last of its shards were others.
--
-- KEYS[1] conf     hash    loses all fields; gets layout, epoch and removed
-- ARGV[1] epoch    count   the last epoch of the topic
-- ARGV[2] keep     ms      how long the removal is recorded
--
-- Returns 'buried'; or 'kept' (it is a topic, or records a later removal).
-- Cost O(1).
-- Safe to repeat, even late.
local CONF = KEYS[1]
local epoch, keep = ARGV[1], ARGV[2]

local conf = redis.call('HMGET', CONF, 'class', 'epoch')
if conf[1] or (tonumber(conf[2]) or 0) > tonumber(epoch) then
  return {'kept'}
end
bury(CONF, epoch, keep)
return {'buried'}
