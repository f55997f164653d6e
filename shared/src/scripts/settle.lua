#!lua flags=allow-oom
-- settle: ends deliveries that were not acknowledged: retry, defer, reject, or payload lost.
--
-- KEYS[1] conf     hash    which groups ask for notices
-- KEYS[2] stats    hash    counters, last_time, alarm
-- KEYS[3] payload  hash    id -> record
-- KEYS[4] ready    stream  one entry a delivery
-- KEYS[5] retry    zset    id -> time of the next attempt
-- KEYS[6] attempts hash    id -> attempts, crashes, last error
-- KEYS[7] garbage  zset    id -> time
-- KEYS[8] dead     hash    id -> reason, attempts, last error
-- KEYS[9] notices  zset    id -> time from which its hook may be tried
-- KEYS[10] wake    channel the mover listens on
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    consumer group
-- ARGV[3] items    sixes   entry id, message id, kind (retry, defer, reject, expired, lost),
--                          when (delay ms, or negative instant), max_attempts, error text; at most 100
--
-- Returns 'settled', then for each item its outcome (retry, deferred, garbage, lost, stale) and time.
-- Cost O(n log N).
-- Safe to repeat: the second time all are stale.
local CONF, STATS, PAYLOAD, READY, RETRY, ATTEMPTS, GARBAGE, DEAD, NOTICES, WAKE =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local virtual, group, first = ARGV[1], ARGV[2], 3

local stats = redis.call('HMGET', STATS, 'last_time', 'alarm')
local now = clock(virtual, stats[1])
-- A wrong type must show before the first write: nothing is rolled back.
redis.call('HLEN', PAYLOAD)
redis.call('ZCARD', RETRY)
redis.call('HLEN', ATTEMPTS)
redis.call('ZCARD', GARBAGE)
redis.call('HLEN', DEAD)
local notices = redis.call('HGET', CONF, 'notices:' .. group) and NOTICES
if notices then
  redis.call('ZCARD', notices)
end

local earliest = math.huge
local reply = {'settled'}
local function answer(outcome, time)
  reply[#reply + 1] = outcome
  reply[#reply + 1] = time
end
local function count(what)
  redis.call('HINCRBY', STATS, what .. ':' .. group, 1)
end
local function again(id, time)
  redis.call('ZADD', RETRY, time, id)
  earliest = math.min(earliest, time)
end

for i = first, #ARGV, 6 do
  local entry, id, kind = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local when, max_attempts, error = ARGV[i + 3], tonumber(ARGV[i + 4]), ARGV[i + 5]
  if redis.call('XACK', READY, group, entry) == 0 then
    answer('stale', now)
  else
    local attempts, _, last_error = read_attempts(redis.call('HGET', ATTEMPTS, id))
    if redis.call('HEXISTS', PAYLOAD, id) == 0 then
      redis.call('HDEL', ATTEMPTS, id)
      count('lost')
      answer('lost', now)
    elseif kind == 'expired' then
      redis.call('HDEL', ATTEMPTS, id)
      bury(GARBAGE, DEAD, notices, id, now, 'expired', attempts, last_error)
      count('expired')
      answer('garbage', now)
    elseif kind == 'reject' or (kind == 'retry' and attempts + 1 >= max_attempts) then
      redis.call('HDEL', ATTEMPTS, id)
      local reason = kind == 'reject' and 'rejected' or 'exhausted'
      bury(GARBAGE, DEAD, notices, id, now, reason, attempts + 1, error)
      count(reason)
      answer('garbage', now)
    elseif kind == 'retry' then
      -- It ended by itself, so the crashes it was suspected of are forgotten.
      write_attempts(ATTEMPTS, id, attempts + 1, 0, error)
      local time = due_at(when, now)
      again(id, time)
      count('retried')
      answer('retry', time)
    else
      write_attempts(ATTEMPTS, id, attempts, 0, last_error)
      -- A payload that was reported lost and is there after all is delivered again at once.
      local time = kind == 'defer' and due_at(when, now) or now
      again(id, time)
      count('deferred')
      answer('deferred', time)
    end
    redis.call('XDEL', READY, entry)
  end
end
wake(WAKE, STATS, stats[2], earliest)
return reply
