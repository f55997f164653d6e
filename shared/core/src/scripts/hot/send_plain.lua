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
-- ARGV[5] fresh    ms      time until which no id can be known here, because Lisa generated them for this call; else 0
-- ARGV[6] items    list    id and record of each message, then the due of each (delay in ms, or negative instant); at most
--                          100, ids distinct
--
-- Returns 'sent', now, 1 if the topic is open, then three values for each duplicate: its index (from 1); its due time, -1 if
--   past waiting, -2 minus its tombstone's code if ended; and the id that it was merged into, or '';
--   or 'class' (no longer plain); or 'changed' (another group); or 'undeclared'.
-- Cost O(n log N). Redis rejects it with nothing stored when it is out of memory.
-- Safe to repeat once `fresh` is over: an id that is stored, or ended within `dedup`, is a duplicate, even if cancelled since
-- the first call.
local CONF, STATS, WAITING, PAYLOAD, READY, TOMB, WAKE, INTO =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local virtual, group, dedup, fresh, first = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5]), 6
local n = (#ARGV - first + 1) / 3
-- The id of message i is ARGV[pair + 2 * i], and its record comes next. Its due is ARGV[when + i].
local pair, when = first - 2, first + 2 * n - 1

local conf = redis.call('HMGET', CONF, 'class', 'paused', 'groups')
if conf[1] ~= 'plain' then
  return {conf[1] and 'class' or 'undeclared'}
elseif conf[3] ~= group then
  return {'changed'}
end
local open = not conf[2]
local stats = redis.call('HMGET', STATS, 'last_time', 'alarm')
local now = clock(virtual, stats[1])

local reply = {'sent', now, open and 1 or 0}
local known, outlived = {}, {}
if now > fresh then
  local again, oldest = scores_by_index(ARGV[4]), oldest_tombstone(now, dedup)
  local ids = {}
  for i = 1, n do
    ids[i] = ARGV[pair + 2 * i]
  end
  local ended = redis.call('ZCARD', TOMB) > 0 and redis.call('ZMSCORE', TOMB, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    local tomb = ended[i] and tonumber(ended[i])
    -- HMGET would read the record: senders could keep Redis busy by naming large messages repeatedly.
    if redis.call('HEXISTS', PAYLOAD, id) == 1 then
      reply[#reply + 1] = i
      reply[#reply + 1] = redis.call('ZSCORE', WAITING, id) or -1
      reply[#reply + 1] = ''
      known[i] = true
    elseif tomb and tomb >= oldest and not (tomb % 4 == 1 and tomb == again[i]) then
      local code = tomb % 4
      reply[#reply + 1] = i
      reply[#reply + 1] = -2 - code
      reply[#reply + 1] = code == 2 and redis.call('HGET', INTO, id) or ''
      known[i] = true
    elseif tomb then
      outlived[#outlived + 1] = id
    end
  end
end

local scores, ready, earliest = {}, {}, math.huge
-- The scores by delay. Most calls have few different delays, and formatting a score takes longer than all other work on a
-- message. A message without a score is due.
local score_of = {}
-- Twice the number of waiting messages.
local waiting = 0
for i = 1, n do
  if not known[i] then
    local text = ARGV[when + i]
    local score = score_of[text]
    if score == nil then
      local due = due_at(text, now)
      score = (due > now or not open) and whole(due)
      score_of[text] = score
      if score and due < earliest then
        earliest = due
      end
    end
    if score then
      scores[waiting + 1], scores[waiting + 2] = score, ARGV[pair + 2 * i]
      waiting = waiting + 2
    else
      ready[#ready + 1] = ARGV[pair + 2 * i]
    end
  end
end
local accepted = waiting / 2 + #ready

-- These keys are written below but were not all read above: a key of a wrong type must fail before the first write.
redis.call('HLEN', PAYLOAD)
if #outlived > 0 then
  redis.call('HLEN', INTO)
end
if #ready > 0 then
  redis.call('XLEN', READY)
end
if waiting > 0 then
  redis.call('ZADD', WAITING, unpack(scores))
end
if accepted == n then
  redis.call('HSET', PAYLOAD, unpack(ARGV, first, first + 2 * n - 1))
elseif accepted > 0 then
  local records = {}
  for i = 1, n do
    if not known[i] then
      records[#records + 1], records[#records + 2] = ARGV[pair + 2 * i], ARGV[pair + 2 * i + 1]
    end
  end
  redis.call('HSET', PAYLOAD, unpack(records))
end
if accepted > 0 then
  redis.call('HINCRBY', STATS, 'accepted', accepted)
end
if #ready > 0 then
  local ready_at = whole(now)
  for i = 1, #ready do
    redis.call('XADD', READY, '*', 'i', ready[i], 'd', ready_at)
  end
  redis.call('HINCRBY', STATS, 'moved', #ready)
  redis.call('HINCRBY', STATS, 'moved:' .. group, #ready)
end
if accepted < n then
  redis.call('HINCRBY', STATS, 'duplicates', n - accepted)
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
