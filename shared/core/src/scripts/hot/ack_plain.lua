#!lua flags=allow-oom
-- ack_plain: removes handled messages of a plain topic.
--
-- KEYS[1] conf     hash    class
-- KEYS[2] stats    hash    counters, last_time
-- KEYS[3] payload  hash    id -> record
-- KEYS[4] ready    stream  one entry for each delivery
-- KEYS[5] attempts hash    id -> attempts, crashes, last error
-- KEYS[6] tomb     zset    ended ids
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    consumer group
-- ARGV[3] count    count   deliveries, at most 200
-- ARGV[4] items    list    their entry ids, distinct; their message ids; the index (from 1) of each id that a caller chose
--
-- Returns 'acked', then the index (from 1) of each item that was stale; or 'class' (not plain); or 'undeclared'.
-- Cost O(n).
-- Safe to repeat: the second time all items are stale.
local CONF, STATS, PAYLOAD, READY, ATTEMPTS, TOMB =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local virtual, group, n, first = ARGV[1], ARGV[2], tonumber(ARGV[3]), 4

local class = redis.call('HGET', CONF, 'class')
if class ~= 'plain' then
  return {class and 'class' or 'undeclared'}
end
local has_payloads = redis.call('HLEN', PAYLOAD) > 0
local has_attempts = redis.call('HLEN', ATTEMPTS) > 0
local stats = redis.call('HGET', STATS, 'last_time')
redis.call('ZCARD', TOMB)

local callers, is_stale, reply = first + 2 * n, {}, {'acked'}
-- The deliveries that this call acknowledges: `taken` has their entries, then their message ids.
local taken, at, count = ARGV, first, n
if redis.call('XACK', READY, group, unpack(ARGV, first, first + n - 1)) < n then
  -- The pending list no longer shows which entries were pending, but the stream does: an entry leaves it together with its
  -- acknowledgement. So an entry that is still there was acknowledged by this call.
  local entries, ids = {}, {}
  for i = 1, n do
    local entry = ARGV[first + i - 1]
    if #redis.call('XRANGE', READY, entry, entry) > 0 then
      entries[#entries + 1], ids[#ids + 1] = entry, ARGV[first + n + i - 1]
    else
      reply[#reply + 1] = i
      is_stale[i] = true
    end
  end
  count = #entries
  if count == 0 then
    return reply
  end
  taken, at = entries, 1
  for i = 1, count do
    taken[count + i] = ids[i]
  end
end
if has_payloads then
  redis.call('HDEL', PAYLOAD, unpack(taken, at + count, at + 2 * count - 1))
end
if has_attempts then
  redis.call('HDEL', ATTEMPTS, unpack(taken, at + count, at + 2 * count - 1))
end
for index = callers, #ARGV do
  local i = tonumber(ARGV[index])
  if not is_stale[i] then
    entomb(TOMB, ARGV[first + n + i - 1], clock(virtual, stats), 0)
  end
end
redis.call('HINCRBY', STATS, 'acked:' .. group, count)
redis.call('XDEL', READY, unpack(taken, at, at + count - 1))
return reply
