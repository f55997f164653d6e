#!lua
-- requeue: delivers messages in garbage again, with all their attempts before them.
--
-- KEYS[1] stats    hash    counters, last_time, alarm
-- KEYS[2] payload  hash    id -> record
-- KEYS[3] retry    zset    id -> time of the next attempt
-- KEYS[4] garbage  zset    id -> time
-- KEYS[5] dead     hash    id -> reason, attempts, last error
-- KEYS[6] wake     channel the mover listens on
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    consumer group
-- ARGV[3] items    pairs   message id, the garbage time that the caller saw; at most 500
--
-- Returns 'requeued', then for each item its outcome: requeued, lost (no payload), unknown.
-- Cost O(n log N).
-- Safe to repeat: a message that came back to garbage since has another time.
local STATS, PAYLOAD, RETRY, GARBAGE, DEAD, WAKE =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local virtual, group, first = ARGV[1], ARGV[2], 3

local stats = redis.call('HMGET', STATS, 'last_time', 'alarm')
local now = clock(virtual, stats[1])
redis.call('HLEN', PAYLOAD)
redis.call('ZCARD', RETRY)
redis.call('HLEN', DEAD)
local reply = {'requeued'}
local counts = {requeued = 0, lost = 0, unknown = 0}
for i = first, #ARGV, 2 do
  local id, time = ARGV[i], tonumber(ARGV[i + 1])
  local outcome = 'unknown'
  if tonumber(redis.call('ZSCORE', GARBAGE, id)) == time then
    if redis.call('HEXISTS', PAYLOAD, id) == 1 then
      outcome = 'requeued'
      redis.call('ZADD', RETRY, now, id)
    else
      outcome = 'lost'
    end
    redis.call('ZREM', GARBAGE, id)
    redis.call('HDEL', DEAD, id)
  end
  counts[outcome] = counts[outcome] + 1
  reply[#reply + 1] = outcome
end
if counts.lost > 0 then
  redis.call('HINCRBY', STATS, 'lost:' .. group, counts.lost)
end
if counts.requeued > 0 then
  redis.call('HINCRBY', STATS, 'requeued:' .. group, counts.requeued)
  wake(WAKE, STATS, stats[2], now)
end
return reply
