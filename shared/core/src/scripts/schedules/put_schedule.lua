#!lua
-- put_schedule: creates a schedule, or replaces its definition. A manager takes it at once, to learn its next time.
--
-- KEYS[1] schedule_definitions hash    schedule -> its definition
-- KEYS[2] schedule_names       zset    the schedules, all with score 0
-- KEYS[3] fires                zset    schedule -> the time at which a manager takes it
-- KEYS[4] schedule_progress    hash    schedule -> "<ms> <version> <rule>": it has fired up to that time, by that rule
-- KEYS[5] paused_schedules     hash    schedule -> the time of the pause
-- KEYS[6] schedule_faults      hash    schedule -> "<missed> <newest missed> <ms of the error> <error>"
-- KEYS[7] failing_schedules    zset    those of them that have an error and are not paused, all with score 0
-- ARGV[1] schedule    name
-- ARGV[2] definition  text
-- ARGV[3] rule        text     changes whenever the times do
-- ARGV[4] at          number   the version that it must have, 0 if it must not exist; empty: any
-- ARGV[5] most        count    the largest number of schedules
-- ARGV[6] max_own     count    the largest number of schedules of the caller; empty: any
-- ARGV[7] own         list     the ranges of the names of those, as ZLEXCOUNT takes them: from and to, none within another
--
-- Returns 'put', the new version and the former one, 0 if it is new; 'unchanged' and the version if it has this definition;
-- 'other' and the version, 0 if there is none, if it is another one; 'full' if a new one would be one too many; 'over' and the number
-- of schedules of the caller if a new one would be one too many of those.
-- Cost O(log schedules), with `max_own` for each range.
-- Safe to repeat: the second time it has this definition.
local SCHEDULE_DEFINITIONS, SCHEDULE_NAMES, FIRES, SCHEDULE_PROGRESS, PAUSED_SCHEDULES, SCHEDULE_FAULTS, FAILING_SCHEDULES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local schedule, definition, rule, at, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local max_own = tonumber(ARGV[6])

local now, us = clock(0)
local before = redis.call('HGET', SCHEDULE_DEFINITIONS, schedule)
local time, version, of
if before then
  time, version, of = string.match(redis.call('HGET', SCHEDULE_PROGRESS, schedule) or '', '^(%d+) (%d+) (.*)$')
end
version = tonumber(version) or 0
if before == definition then
  return {'unchanged', whole(version)}
end
if at and at ~= version then
  return {'other', whole(version)}
end
if not before and redis.call('ZCARD', SCHEDULE_NAMES) >= most then
  return {'full'}
end
if not before and max_own then
  local count = 0
  for i = 7, #ARGV, 2 do
    count = count + redis.call('ZLEXCOUNT', SCHEDULE_NAMES, ARGV[i], ARGV[i + 1])
  end
  if count >= max_own then
    return {'over', count}
  end
end
-- A time in µs, so that it grows also if the schedule is removed and created again, unless the clock is set back.
local new = math.max(version + 1, now * 1000 + us)
-- A time far ahead was recorded before the clock was set back.
if of ~= rule or tonumber(time) > now + 60000 then
  time = whole(now)
end
if not before then
  -- What a schedule of this name in a file has left.
  redis.call('HDEL', PAUSED_SCHEDULES, schedule)
  redis.call('HDEL', SCHEDULE_FAULTS, schedule)
else
  -- The error may be of the definition before. The times that were missed stay.
  local missed = string.match(redis.call('HGET', SCHEDULE_FAULTS, schedule) or '', '^%d+ %d+ ')
  if missed and string.sub(missed, 1, 2) ~= '0 ' then
    redis.call('HSET', SCHEDULE_FAULTS, schedule, missed .. '0 ')
  else
    redis.call('HDEL', SCHEDULE_FAULTS, schedule)
  end
end
redis.call('ZREM', FAILING_SCHEDULES, schedule)
redis.call('HSET', SCHEDULE_DEFINITIONS, schedule, definition)
redis.call('ZADD', SCHEDULE_NAMES, 0, schedule)
redis.call('HSET', SCHEDULE_PROGRESS, schedule, time .. ' ' .. whole(new) .. ' ' .. rule)
if redis.call('HEXISTS', PAUSED_SCHEDULES, schedule) == 0 then
  redis.call('ZADD', FIRES, whole(now), schedule)
end
return {'put', whole(new), whole(version)}
