#!lua flags=allow-oom
-- reschedule: gives a message that is not on the stream and not in garbage another due time.
--
-- KEYS[1] stats    hash    counters, last_time, alarm
-- KEYS[2] waiting  zset    id -> due ms
-- KEYS[3] payload  hash    id -> record
-- KEYS[4] retry    zset    id -> time of the next attempt
-- KEYS[5] garbage  zset    id -> time
-- KEYS[6] tomb     zset    ended ids
-- KEYS[7] wake     channel the mover listens on
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] id       text    message id
-- ARGV[3] when     ms      delay, or negative instant
--
-- Returns 'rescheduled' and the new due time; or 'in_flight' (ready or in flight); or 'garbage'; or
--   'unknown' and its tombstone's code or -1.
-- Cost O(log N). Attempts made so far stay counted.
-- Safe to repeat: the same due time again, for an instant; a delay counts from the repeat.
local STATS, WAITING, PAYLOAD, RETRY, GARBAGE, TOMB, WAKE =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local virtual, id, when = ARGV[1], ARGV[2], ARGV[3]

local stats = redis.call('HMGET', STATS, 'last_time', 'alarm')
local now = clock(virtual, stats[1])
local due = due_at(when, now)
if redis.call('ZSCORE', WAITING, id) then
  redis.call('ZADD', WAITING, due, id)
elseif redis.call('ZSCORE', RETRY, id) then
  redis.call('ZADD', RETRY, due, id)
elseif redis.call('ZSCORE', GARBAGE, id) then
  return {'garbage'}
elseif redis.call('HEXISTS', PAYLOAD, id) == 1 then
  return {'in_flight'}
else
  return {'unknown', end_of(TOMB, id)}
end
wake(WAKE, STATS, stats[2], due)
return {'rescheduled', due}
