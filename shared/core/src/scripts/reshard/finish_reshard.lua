#!lua flags=allow-oom
-- finish_reshard: makes a successor forget the retired shards.
--
-- KEYS[1] conf     hash    loses watermark and the fields about each retired shard; previous becomes 'over'
-- ARGV[1] oldest   number  the first retired shard
-- ARGV[2] youngest number  the last
--
-- Returns 'finished' and the epoch.
-- Cost O(shards).
-- Safe to repeat.
local CONF = KEYS[1]
local oldest, youngest = tonumber(ARGV[1]), tonumber(ARGV[2])

-- A late caller must see that the reshard is over: from then on, nothing migrates in.
if tonumber(redis.call('HGET', CONF, 'previous')) == oldest then
  redis.call('HDEL', CONF, 'watermark')
  redis.call('HSET', CONF, 'previous', 'over')
  for shard = oldest, youngest do
    redis.call('HDEL', CONF, 'watermark:' .. shard, 'from:' .. shard)
  end
  redis.call('HINCRBY', CONF, 'epoch', 1)
end
return {'finished', tonumber(redis.call('HGET', CONF, 'epoch')) or 0}
