#!lua flags=allow-oom
-- complete: lets a shard forget whom it took over from.
--
-- KEYS[1] conf     hash    loses previous, held and what was noted of each of the others
-- ARGV[1] oldest   number  the first of the shards that were given up
-- ARGV[2] youngest number  the last
--
-- Returns 'complete' and the epoch.
-- Cost O(shards).
-- Safe to repeat.
local CONF = KEYS[1]
local oldest, youngest = tonumber(ARGV[1]), tonumber(ARGV[2])

if redis.call('HEXISTS', CONF, 'previous') == 1 then
  redis.call('HDEL', CONF, 'previous', 'held')
  for shard = oldest, youngest do
    redis.call('HDEL', CONF, 'held:' .. shard, 'from:' .. shard)
  end
  redis.call('HINCRBY', CONF, 'epoch', 1)
end
return {'complete', tonumber(redis.call('HGET', CONF, 'epoch')) or 0}
