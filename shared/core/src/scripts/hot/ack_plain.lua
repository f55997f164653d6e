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

local entries = {unpack(ARGV, first, first + n - 1)}
local ids = {unpack(ARGV, first + n, first + 2 * n - 1)}
local callers, is_stale = {unpack(ARGV, first + 2 * n)}, {}
local reply = {'acked'}
local acked = redis.call('XACK', READY, group, unpack(entries))
if acked < n then
  -- The pending list no longer shows which entries were pending, but the stream does: an entry leaves it together with its
  -- acknowledgement. So an entry that is still there was acknowledged by this call.
  local mine, my_ids = {}, {}
  for i = 1, n do
    if #redis.call('XRANGE', READY, entries[i], entries[i]) > 0 then
      mine[#mine + 1], my_ids[#my_ids + 1] = entries[i], ids[i]
    else
      reply[#reply + 1] = i
      is_stale[i] = true
    end
  end
  entries, ids = mine, my_ids
end
if #ids == 0 then
  return reply
end
if has_payloads then
  redis.call('HDEL', PAYLOAD, unpack(ids))
end
if has_attempts then
  redis.call('HDEL', ATTEMPTS, unpack(ids))
end
for _, index in ipairs(callers) do
  local i = tonumber(index)
  if not is_stale[i] then
    entomb(TOMB, ARGV[first + n + i - 1], clock(virtual, stats), 0)
  end
end
redis.call('HINCRBY', STATS, 'acked:' .. group, #ids)
redis.call('XDEL', READY, unpack(entries))
return reply
