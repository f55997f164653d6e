#!lua flags=allow-oom
-- move_due_plain: puts due messages of a plain topic on the stream, with waiting and retry merged by time.
--
-- KEYS[1] conf     hash    class, groups, pause flag
-- KEYS[2] stats    hash    counters, last_time, alarm
-- KEYS[3] waiting  zset    id -> due ms
-- KEYS[4] retry    zset    id -> time of the next attempt
-- KEYS[5] ready    stream  one entry for each delivery
-- KEYS[6] attempts hash    id -> attempts, crashes, last error
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    the topic's only group
-- ARGV[3] batch    count   most messages to move, 1 to 200; half of them while more than a million wait
-- ARGV[4] idle     ms      time until the caller looks again if nothing becomes due before
--
-- Returns 'moved', number moved, µs until the next look (0: more may be due);
--   or 'paused'; or 'class' (no longer plain); or 'changed' (another group); or 'undeclared'.
-- Cost O(n log N).
-- Safe to repeat: a moved message is no longer due.
local CONF, STATS, WAITING, RETRY, READY, ATTEMPTS =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local virtual, group, batch, idle = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
-- The number of waiting messages beyond which a batch is halved, because a move of each message takes longer.
local MANY = 1000000

local conf = redis.call('HMGET', CONF, 'class', 'paused', 'groups')
if conf[1] ~= 'plain' then
  return {conf[1] and 'class' or 'undeclared'}
elseif conf[3] ~= group then
  return {'changed'}
end
local now, us = clock(virtual, redis.call('HGET', STATS, 'last_time'))
if conf[2] then
  return {'paused'}
end
if redis.call('ZCARD', WAITING) > MANY then
  batch = math.ceil(batch / 2)
end

local function due(zset)
  return redis.call('ZRANGE', zset, '-inf', now, 'BYSCORE', 'LIMIT', 0, batch, 'WITHSCORES')
end
-- Returns what `due` returns if a full batch of waiting messages is due within a few ms, as it is under load; else nil. It
-- counts the messages of each ms, because formatting all scores takes Redis 7.0 as long as an XADD.
local function due_in_few_ms()
  local last = tonumber(redis.call('ZRANGE', WAITING, batch - 1, batch - 1, 'WITHSCORES')[2])
  local time = last and last <= now and tonumber(redis.call('ZRANGE', WAITING, 0, 0, 'WITHSCORES')[2])
  if not time or last - time > batch / 10 then
    return nil
  end
  local ids, found, to = redis.call('ZRANGE', WAITING, 0, batch - 1), {}, 0
  while to < batch do
    local from, text = to + 1, whole(time)
    to = time == last and batch or redis.call('ZCOUNT', WAITING, '-inf', text)
    for i = from, to do
      found[2 * i - 1], found[2 * i] = ids[i], text
    end
    time = time + 1
  end
  return found
end
local waiting, retry = due_in_few_ms() or due(WAITING), due(RETRY)
local attempts = {}
if #retry > 0 then
  local ids = {}
  for i = 1, #retry, 2 do
    ids[#ids + 1] = retry[i]
  end
  attempts = redis.call('HMGET', ATTEMPTS, unpack(ids))
end

local w, r, moved = 1, 1, 0
while moved < batch and (waiting[w] or retry[r]) do
  if not retry[r] or (waiting[w] and tonumber(waiting[w + 1]) <= tonumber(retry[r + 1])) then
    redis.call('XADD', READY, '*', 'i', waiting[w], 'd', waiting[w + 1])
    w = w + 2
  else
    local done, crashes, _, own_due = read_attempts(attempts[(r + 1) / 2])
    local due = own_due and whole(own_due) or retry[r + 1]
    redis.call('XADD', READY, '*', write_fields(retry[r], due, done, crashes, math.huge))
    r = r + 2
  end
  moved = moved + 1
end
local from_waiting, from_retry = (w - 1) / 2, (r - 1) / 2
-- After a full batch the mover calls again immediately, so no script needs to wake it: alarm 0.
local more = moved == batch
local look, pause = 0, 0
if not more then
  look = now + idle
  -- Read before a zset loses its last member, and thereby its key: the slot may be moving, see keyspace.md.
  for zset, taken in pairs({[WAITING] = from_waiting, [RETRY] = from_retry}) do
    local next = redis.call('ZRANGE', zset, taken, taken, 'WITHSCORES')
    look = math.min(look, tonumber(next[2]) or look)
  end
  pause = math.max((look - now) * 1000 - us, 0)
end
if from_waiting > 0 then
  redis.call('ZREMRANGEBYRANK', WAITING, 0, from_waiting - 1)
  redis.call('HINCRBY', STATS, 'moved', from_waiting)
  redis.call('HINCRBY', STATS, 'moved:' .. group, from_waiting)
end
if from_retry > 0 then
  redis.call('ZREMRANGEBYRANK', RETRY, 0, from_retry - 1)
end
redis.call('HSET', STATS, 'last_time', now, 'alarm', look)
return {'moved', moved, pause}
