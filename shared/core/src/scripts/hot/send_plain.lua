#!lua
-- send_plain: stores messages of a plain topic; those due now go straight to the stream.
--
-- KEYS[1] conf     hash    class, groups, pause flag
-- KEYS[2] stats    hash    counters, last_time, alarm
-- KEYS[3] waiting  zset    id -> due ms
-- KEYS[4] payload  hash    id -> record
-- KEYS[5] ready    stream  one entry for each delivery
-- KEYS[6] tomb     zset    ended ids
-- KEYS[7] wake     channel the mover listens on
-- KEYS[8] into     hash    merged id -> the message that it was merged into
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    the topic's only group
-- ARGV[3] dedup    ms      the dedup window, for which ended ids are remembered
-- ARGV[4] again    pairs   of the items to send although a message of their id was cancelled: index (from 1), colon, score
--                          of the tombstone to ignore; separated by spaces
-- ARGV[5] own      flag    1 if a caller chose any of the ids
-- ARGV[6] items    triples id, due (delay in ms, or negative instant), record; at most 200, ids distinct
--
-- Returns 'sent', now, 1 if the topic is open, then three values for each duplicate: its index (from 1); its due time, -1 if
--   past waiting, -2 minus its tombstone's code if ended; and the id that it was merged into, or '';
--   or 'class' (no longer plain); or 'changed' (another group); or 'undeclared'.
-- Cost O(n log N). Redis rejects it with nothing stored when it is out of memory.
-- Safe to repeat: an id that is stored, or ended within `dedup`, is a duplicate, even if cancelled since the first call.
local CONF, STATS, WAITING, PAYLOAD, READY, TOMB, WAKE, INTO =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local virtual, group, dedup, again, first = ARGV[1], ARGV[2], tonumber(ARGV[3]), scores_by_index(ARGV[4]), 6
local n = (#ARGV - first + 1) / 3

local conf = redis.call('HMGET', CONF, 'class', 'paused', 'groups')
if conf[1] ~= 'plain' then
  return {conf[1] and 'class' or 'undeclared'}
elseif conf[3] ~= group then
  return {'changed'}
end
local open = not conf[2]
local stats = redis.call('HMGET', STATS, 'last_time', 'alarm')
local now = clock(virtual, stats[1])

local ids, args = {}, ARGV
for i = 1, n do
  ids[i] = args[first + (i - 1) * 3]
end
local stored = are_stored(PAYLOAD, ids, ARGV[5] == '1')
local ended = redis.call('ZCARD', TOMB) > 0 and redis.call('ZMSCORE', TOMB, unpack(ids)) or {}
local oldest, outlived = oldest_tombstone(now, dedup), {}

local reply = {'sent', now, open and 1 or 0}
local records, scores, ready = {}, {}, {}
-- `new` and `scored` are twice the numbers of messages. Consecutive messages often have the same delay and so share a score.
local new, scored, earliest = 0, 0, math.huge
local last, score
for i = 1, n do
  local id, at = ids[i], first + (i - 1) * 3
  local tomb = ended[i] and tonumber(ended[i])
  local is_ended = tomb and tomb >= oldest and not (tomb % 4 == 1 and tomb == again[i])
  if stored[i] or is_ended then
    reply[#reply + 1] = i
    if stored[i] then
      reply[#reply + 1] = redis.call('ZSCORE', WAITING, id) or -1
      reply[#reply + 1] = ''
    else
      local code = tomb % 4
      reply[#reply + 1] = -2 - code
      reply[#reply + 1] = code == 2 and redis.call('HGET', INTO, id) or ''
    end
  else
    if ended[i] then
      outlived[#outlived + 1] = id
    end
    local when = args[at + 1]
    local due = due_at(when, now)
    records[new + 1], records[new + 2] = id, args[at + 2]
    new = new + 2
    if due <= now and open then
      ready[#ready + 1] = id
    else
      if when ~= last then
        last, score = when, whole(due)
      end
      scores[scored + 1], scores[scored + 2] = score, id
      scored = scored + 2
      if due < earliest then
        earliest = due
      end
    end
  end
end

-- These keys are written below but were not read above: a key of a wrong type must fail before the first write.
if #outlived > 0 then
  redis.call('HLEN', INTO)
end
if #ready > 0 then
  redis.call('XLEN', READY)
end
if scored > 0 then
  redis.call('ZADD', WAITING, unpack(scores))
end
if new > 0 then
  redis.call('HSET', PAYLOAD, unpack(records))
  redis.call('HINCRBY', STATS, 'accepted', new / 2)
end
if #ready > 0 then
  local due = whole(now)
  for i = 1, #ready do
    redis.call('XADD', READY, '*', 'i', ready[i], 'd', due)
  end
  redis.call('HINCRBY', STATS, 'moved', #ready)
  redis.call('HINCRBY', STATS, 'moved:' .. group, #ready)
end
if #reply > 3 then
  redis.call('HINCRBY', STATS, 'duplicates', (#reply - 3) / 3)
end
if #outlived > 0 then
  redis.call('ZREM', TOMB, unpack(outlived))
  redis.call('HDEL', INTO, unpack(outlived))
end
redis.call('HSET', STATS, 'last_time', now)
if open then
  wake(WAKE, STATS, stats[2], earliest)
end
return reply
