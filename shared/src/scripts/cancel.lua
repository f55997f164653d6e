#!lua flags=allow-oom
-- cancel: removes a message that is not on the stream and not in garbage.
--
-- KEYS[1] stats    hash    counters, last_time
-- KEYS[2] waiting  zset    id -> due ms
-- KEYS[3] payload  hash    id -> record
-- KEYS[4] retry    zset    id -> time of the next attempt
-- KEYS[5] attempts hash    id -> attempts, crashes, last error
-- KEYS[6] garbage  zset    id -> time
-- KEYS[7] tomb     zset    ended ids
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    the topic's only group
-- ARGV[3] id       text    message id
--
-- Returns 'cancelled' and the record; or 'cancelled' alone if it was cancelled before; or
--   'in_flight' (ready or in flight); or 'garbage'; or 'unknown' and its tombstone's code or -1.
-- Cost O(log N).
-- Safe to repeat: the tombstone makes the second answer cancelled, too.
local STATS, WAITING, PAYLOAD, RETRY, ATTEMPTS, GARBAGE, TOMB =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local virtual, group, id = ARGV[1], ARGV[2], ARGV[3]

local now = clock(virtual, redis.call('HGET', STATS, 'last_time'))
local code = end_of(TOMB, id)
local waiting = redis.call('ZSCORE', WAITING, id)
local retry = redis.call('ZSCORE', RETRY, id)
local record = redis.call('HGET', PAYLOAD, id)
redis.call('HLEN', ATTEMPTS)
if not waiting and not retry then
  if redis.call('ZSCORE', GARBAGE, id) then
    return {'garbage'}
  elseif record then
    return {'in_flight'}
  elseif code == 1 then
    return {'cancelled'}
  end
  return {'unknown', code}
end
entomb(TOMB, id, now, 1)
if waiting then
  redis.call('ZREM', WAITING, id)
  redis.call('HINCRBY', STATS, 'cancelled', 1)
else
  redis.call('ZREM', RETRY, id)
  redis.call('HINCRBY', STATS, 'cancelled:' .. group, 1)
end
redis.call('HDEL', PAYLOAD, id)
redis.call('HDEL', ATTEMPTS, id)
return {'cancelled', record or ''}
