#!lua flags=allow-oom
-- complete: lets a shard forget whom it took over from.
--
-- KEYS[1] conf     hash    loses horizon and what was noted of each of the others; previous is 'over'
-- ARGV[1] oldest   number  the first of the shards that were given up
-- ARGV[2] youngest number  the last
--
-- Returns 'complete' and the epoch.
-- Cost O(shards).
-- Safe to repeat.
local CONF = KEYS[1]
local oldest, youngest = tonumber(ARGV[1]), tonumber(ARGV[2])

-- Who comes too late must see that it is over: from then on nothing is taken in here.
if tonumber(redis.call('HGET', CONF, 'previous')) == oldest then
  redis.call('HDEL', CONF, 'horizon')
  redis.call('HSET', CONF, 'previous', 'over')
  for shard = oldest, youngest do
    redis.call('HDEL', CONF, 'horizon:' .. shard, 'from:' .. shard)
  end
  redis.call('HINCRBY', CONF, 'epoch', 1)
end
return {'complete', tonumber(redis.call('HGET', CONF, 'epoch')) or 0}
