#!lua flags=no-writes
-- lookup: where one message is.
--
-- KEYS[1] waiting  zset    id -> due ms
-- KEYS[2] payload  hash    id -> record
-- KEYS[3] retry    zset    id -> time of the next attempt
-- KEYS[4] attempts hash    id -> attempts, crashes, last error
-- KEYS[5] garbage  zset    id -> time
-- KEYS[6] dead     hash    id -> reason, attempts, last error
-- KEYS[7] tomb     zset    ended ids
-- ARGV[1] id       text    message id
--
-- Returns place (waiting, retry, garbage, stream), its time (0 on the stream), attempts made, the
--   `dead` text in garbage and else the last error, the record; or 'unknown' and its tombstone's code or -1.
-- Cost O(1). Whether a message on the stream is ready or in flight is read from the stream.
-- Safe to repeat.
local WAITING, PAYLOAD, RETRY, ATTEMPTS, GARBAGE, DEAD, TOMB =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local id = ARGV[1]

local record = redis.call('HGET', PAYLOAD, id)
local attempts, _, error = read_attempts(redis.call('HGET', ATTEMPTS, id))
for place, zset in pairs({waiting = WAITING, retry = RETRY, garbage = GARBAGE}) do
  local time = redis.call('ZSCORE', zset, id)
  if time then
    return {place, time, attempts, place == 'garbage' and redis.call('HGET', DEAD, id) or error, record or ''}
  end
end
if record then
  return {'stream', 0, attempts, error, record}
end
return {'unknown', end_of(TOMB, id)}
