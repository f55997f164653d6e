#!lua flags=allow-oom
-- adopt: adds the counters of a shard that has handed everything over to those of one that follows it.
--
-- KEYS[1] stats    hash    gets adopted_<shard>, which says whose counters are in it
-- ARGV[1] from     number  the shard
-- ARGV[2] counters pairs   name, count
--
-- Returns 'adopted', 1 if this call did it.
-- Cost O(counters).
-- Safe to repeat: counters are added once.
local STATS = KEYS[1]
local from, first = ARGV[1], 2

if redis.call('HEXISTS', STATS, 'adopted_' .. from) == 1 then
  return {'adopted', 0}
end
redis.call('HSET', STATS, 'adopted_' .. from, 1)
for i = first, #ARGV, 2 do
  redis.call('HINCRBY', STATS, ARGV[i], ARGV[i + 1])
end
return {'adopted', 1}
