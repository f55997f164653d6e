#!lua flags=allow-oom
-- reclaim: takes back deliveries whose lease is over: into retry, or into garbage.
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
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock; idle times are always Redis's
-- ARGV[2] group    name    consumer group
-- ARGV[3] lease    ms      idle time after which a delivery is taken back
-- ARGV[4] items    triples entry id, delay ms before the next attempt, max_attempts; at most 100
--
-- Returns 'reclaimed', then for each item its outcome (retry, garbage, lost, kept) and time.
-- Cost O(n log N).
-- Safe to repeat: an entry that was taken back is kept the second time, as nothing is pending.
--
-- Which messages are charged an attempt: when a process dies, everything it held is a suspect. The
-- first time each is charged, though never its last attempt. A suspect runs alone and is marked as
-- started (delivery count above 1); from then on only a started one is charged, to the end.
local CONF, STATS, PAYLOAD, READY, RETRY, ATTEMPTS, GARBAGE, DEAD, NOTICES, WAKE =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local virtual, group, lease, first = ARGV[1], ARGV[2], ARGV[3], 4

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
local reply = {'reclaimed'}
local function answer(outcome, time)
  reply[#reply + 1] = outcome
  reply[#reply + 1] = time
end
local function count(what)
  redis.call('HINCRBY', STATS, what .. ':' .. group, 1)
end

for i = first, #ARGV, 3 do
  local entry, delay, max_attempts = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local pending = redis.call('XPENDING', READY, group, 'IDLE', lease, entry, entry, 1)[1]
  if not pending then
    answer('kept', now)
  else
    local fields = read_entry(READY, entry)
    local id = fields and fields.i
    redis.call('XACK', READY, group, entry)
    if not id or redis.call('HEXISTS', PAYLOAD, id) == 0 then
      if id then
        redis.call('HDEL', ATTEMPTS, id)
      end
      count('lost')
      answer('lost', now)
    else
      local started = pending[4] > 1
      local attempts, crashes = read_attempts(redis.call('HGET', ATTEMPTS, id))
      if started then
        attempts = attempts + 1
      elseif crashes == 0 then
        attempts = math.min(attempts + 1, max_attempts - 1)
      end
      count('reclaimed')
      local error = 'the lease of ' .. pending[2] .. ' ran out'
      if attempts >= max_attempts then
        redis.call('HDEL', ATTEMPTS, id)
        bury(GARBAGE, DEAD, notices, id, now, 'exhausted', attempts, error)
        count('exhausted')
        answer('garbage', now)
      else
        -- The first crash says little about the message: it comes again at once.
        local time = crashes == 0 and now or now + delay
        write_attempts(ATTEMPTS, id, attempts, crashes + 1, error)
        redis.call('ZADD', RETRY, time, id)
        earliest = math.min(earliest, time)
        answer('retry', time)
      end
    end
    redis.call('XDEL', READY, entry)
  end
end
wake(WAKE, STATS, stats[2], earliest)
return reply
