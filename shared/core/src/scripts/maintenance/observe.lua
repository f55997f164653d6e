#!lua flags=allow-oom
-- observe: adds deliveries to the counts by lateness of a topic, which are on the topic's first shard.
--
-- KEYS[1] conf     hash   settings of the shard
-- KEYS[2] observed hash   bucket of lateness -> deliveries
-- ARGV[1] counts   list   up to 16 pairs: bucket, 0 to 15, and number of deliveries to add
--
-- Returns 'observed', and the number of buckets that were changed; 0 if the shard is gone.
-- Cost O(1).
-- Safe to repeat, but a repeated call counts its deliveries twice.
local CONF, OBSERVED = KEYS[1], KEYS[2]

if redis.call('HEXISTS', CONF, 'layout') == 0 then
  return {'observed', 0}
end
for i = 1, #ARGV, 2 do
  redis.call('HINCRBY', OBSERVED, ARGV[i], ARGV[i + 1])
end
return {'observed', #ARGV / 2}
