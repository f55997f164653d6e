#!lua flags=allow-oom
-- merge_counters: adds the counters of a retired shard, whose messages have all migrated, to those of a successor.
--
-- KEYS[1] stats    hash    gets merged_from_<shard>, which says whose counters it includes
-- ARGV[1] from     number  the retired shard
-- ARGV[2] counters pairs   name, count
--
-- Returns 'merged', 1 if this call added them.
-- Cost O(counters).
-- Safe to repeat: counters are added once.
local STATS = KEYS[1]
local from, first = ARGV[1], 2

if redis.call('HEXISTS', STATS, 'merged_from_' .. from) == 1 then
  return {'merged', 0}
end
redis.call('HSET', STATS, 'merged_from_' .. from, 1)
for i = first, #ARGV, 2 do
  redis.call('HINCRBY', STATS, ARGV[i], ARGV[i + 1])
end
return {'merged', 1}
