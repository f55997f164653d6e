#!lua flags=no-writes
-- page: reads a page of messages that have a time, in the order of their times, from a position that stays the same while
--   other messages come and go.
--
-- KEYS[1] times    zset    member -> ms
-- KEYS[2] details  hash    id -> text; not given for waiting messages, which have none
-- ARGV[1] from     ms      the least time
-- ARGV[2] to       ms      the end of the times: one more than the greatest
-- ARGV[3] newest   flag    1 for the newest first
-- ARGV[4] limit    count   1 to 1000
-- ARGV[5] time     ms      that of the last message of the previous page; empty for the first page
-- ARGV[6] member   text    the member of that message
--
-- Returns 'page', then for each message: its member, its time, its text in `details` or ''.
-- Cost O(log N + limit). If the last message of the previous page is gone, and other messages have its time, about 20 more
--   reads of one member.
-- Safe to repeat.
local TIMES, DETAILS = KEYS[1], KEYS[2]
local from, to, newest, limit, time, last = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4]), ARGV[5], ARGV[6]

-- Compares as a zset does. Lua's operator follows the locale.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

-- Returns the rank of the first member that does not come before `last`, and whether it is `last`.
local function position()
  local low = redis.call('ZCOUNT', TIMES, '-inf', '(' .. time)
  local high = low + redis.call('ZCOUNT', TIMES, time, time)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = redis.call('ZRANGE', TIMES, middle, middle)[1]
    if is_before(member, last) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low, redis.call('ZRANGE', TIMES, low, low)[1] == last
end

local first = redis.call('ZCOUNT', TIMES, '-inf', '(' .. from)
local over = redis.call('ZCOUNT', TIMES, '-inf', '(' .. to)
if time ~= '' then
  local rank, is_there = position()
  if newest then
    over = math.min(over, rank)
  else
    first = math.max(first, is_there and rank + 1 or rank)
  end
end
if newest then
  first = math.max(first, over - limit)
else
  over = math.min(over, first + limit)
end
local reply = {'page'}
if first >= over then
  return reply
end
local found = redis.call('ZRANGE', TIMES, first, over - 1, 'WITHSCORES')
local texts = {}
if DETAILS then
  local ids = {}
  for i = 1, #found, 2 do
    -- The member of a message with an arrival number begins with it.
    ids[#ids + 1] = string.sub(found[i], 1, 1) == '~' and string.sub(found[i], 14) or found[i]
  end
  texts = redis.call('HMGET', DETAILS, unpack(ids))
end
local begin, stop, step = 1, #found, 2
if newest then
  begin, stop, step = #found - 1, 1, -2
end
for i = begin, stop, step do
  reply[#reply + 1] = found[i]
  reply[#reply + 1] = found[i + 1]
  reply[#reply + 1] = texts[(i + 1) / 2] or ''
end
return reply
