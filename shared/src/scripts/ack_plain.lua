#!lua flags=allow-oom
-- ack_plain: removes handled messages of a plain topic.
--
-- KEYS[1] conf     hash    class
-- KEYS[2] stats    hash    counters, last_time
-- KEYS[3] payload  hash    id -> record
-- KEYS[4] ready    stream  one entry a delivery
-- KEYS[5] attempts hash    id -> attempts, crashes, last error
-- KEYS[6] tomb     zset    ended ids
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    consumer group
-- ARGV[3] items    triples entry id, message id, 1 if the id is the caller's; at most 500, entries distinct
--
-- Returns 'acked', then the index from 1 of each item that was stale; or 'class'; or 'undeclared'.
-- Cost O(n).
-- Safe to repeat: the second time all are stale.
local CONF, STATS, PAYLOAD, READY, ATTEMPTS, TOMB =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local virtual, group, first = ARGV[1], ARGV[2], 3
local n = (#ARGV - first + 1) / 3

local class = redis.call('HGET', CONF, 'class')
if class ~= 'plain' then
  return {class and 'class' or 'undeclared'}
end
local has_payloads = redis.call('HLEN', PAYLOAD) > 0
local has_attempts = redis.call('HLEN', ATTEMPTS) > 0
local stats = redis.call('HGET', STATS, 'last_time')
redis.call('ZCARD', TOMB)

local entries, ids = {}, {}
for i = 1, n do
  entries[i] = ARGV[first + (i - 1) * 3]
  ids[i] = ARGV[first + (i - 1) * 3 + 1]
end
local reply = {'acked'}
local acked = redis.call('XACK', READY, group, unpack(entries))
if acked < n then
  -- The pending list does not tell any more which were ours, but the stream does: an entry leaves
  -- it together with its acknowledgement, so one that is still there was acknowledged just now.
  local mine, my_ids = {}, {}
  for i = 1, n do
    if #redis.call('XRANGE', READY, entries[i], entries[i]) > 0 then
      mine[#mine + 1], my_ids[#my_ids + 1] = entries[i], ids[i]
    else
      reply[#reply + 1] = i
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
local stale = 2
for i = 1, n do
  if reply[stale] == i then
    stale = stale + 1
  elseif ARGV[first + (i - 1) * 3 + 2] == '1' then
    entomb(TOMB, ARGV[first + (i - 1) * 3 + 1], clock(virtual, stats), 0)
  end
end
redis.call('HINCRBY', STATS, 'acked:' .. group, #ids)
redis.call('XDEL', READY, unpack(entries))
return reply
