#!lua flags=allow-oom
-- purge: removes messages in garbage for good.
--
-- KEYS[1] stats    hash    counters, last_time
-- KEYS[2] payload  hash    id -> record
-- KEYS[3] garbage  zset    id -> time
-- KEYS[4] dead     hash    id -> reason, attempts, last error
-- KEYS[5] tomb     zset    ended ids
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    consumer group
-- ARGV[3] items    pairs   message id, the garbage time that the caller saw; at most 500
--
-- Returns 'purged', then for each item its outcome: purged, unknown.
-- Cost O(n log N).
-- Safe to repeat: what was purged is unknown the second time.
local STATS, PAYLOAD, GARBAGE, DEAD, TOMB = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local virtual, group, first = ARGV[1], ARGV[2], 3

local now = clock(virtual, redis.call('HGET', STATS, 'last_time'))
redis.call('HLEN', PAYLOAD)
redis.call('HLEN', DEAD)
redis.call('ZCARD', TOMB)
local reply = {'purged'}
local purged = 0
for i = first, #ARGV, 2 do
  local id, time = ARGV[i], tonumber(ARGV[i + 1])
  if tonumber(redis.call('ZSCORE', GARBAGE, id)) == time then
    entomb(TOMB, id, now, 3)
    redis.call('ZREM', GARBAGE, id)
    redis.call('HDEL', DEAD, id)
    redis.call('HDEL', PAYLOAD, id)
    purged = purged + 1
    reply[#reply + 1] = 'purged'
  else
    reply[#reply + 1] = 'unknown'
  end
end
if purged > 0 then
  redis.call('HINCRBY', STATS, 'purged:' .. group, purged)
end
return reply
