#!lua flags=no-writes
-- stats: how many messages are in each state, and the counters, at one instant.
--
-- KEYS[1] conf     hash    pause flag
-- KEYS[2] stats    hash    counters
-- KEYS[3] waiting  zset    id -> due ms
-- KEYS[4] ready    stream  one entry a delivery
-- KEYS[5] retry    zset    id -> time of the next attempt
-- KEYS[6] garbage  zset    id -> time
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    consumer group
--
-- Returns 'stats', now, 1 if paused, waiting, next due time (-1 if none), stream length, in flight,
--   retry, garbage, then the counters as name and value; or 'undeclared'.
-- Cost O(1).
-- Safe to repeat.
local CONF, STATS, WAITING, READY, RETRY, GARBAGE =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local virtual, group = ARGV[1], ARGV[2]

local conf = redis.call('HMGET', CONF, 'epoch', 'paused')
if not conf[1] then
  return {'undeclared'}
end
local next = redis.call('ZRANGE', WAITING, 0, 0, 'WITHSCORES')
local length = redis.call('XLEN', READY)
-- Without its group, which is made anew at the next read, nothing is in flight.
local pending = redis.pcall('XPENDING', READY, group)
local reply = {
  'stats', clock(virtual, redis.call('HGET', STATS, 'last_time')), conf[2] and 1 or 0,
  redis.call('ZCARD', WAITING), next[2] or -1, length, pending.err and 0 or pending[1],
  redis.call('ZCARD', RETRY), redis.call('ZCARD', GARBAGE),
}
for _, field in ipairs(redis.call('HGETALL', STATS)) do
  reply[#reply + 1] = field
end
return reply
