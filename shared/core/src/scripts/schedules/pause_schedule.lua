#!lua flags=allow-oom
-- pause_schedule: pauses or resumes a schedule. The times that pass meanwhile are not made up for.
--
-- KEYS[1] schedule_definitions hash    schedule -> its definition
-- KEYS[2] fires                zset    schedule -> the time at which a manager takes it
-- KEYS[3] schedules            hash    schedule of a configuration -> "<ms> <rule>": it has fired up to that time, by that rule
-- KEYS[4] schedule_progress    hash    the same for those that are stored; the rule begins with the version
-- KEYS[5] paused_schedules     hash    schedule -> the time of the pause
-- KEYS[6] schedule_faults      hash    schedule -> "<missed> <newest missed> <ms of the error> <error>"
-- KEYS[7] failing_schedules    zset    those of them that have an error and are not paused, all with score 0
-- KEYS[8] resumed_schedules    hash    schedule -> "<ms of the last resume> <ms up to which it had fired before its pause>"
-- ARGV[1] schedule    name
-- ARGV[2] how         word     pause or resume
-- ARGV[3] declared    flag     1 if a configuration declares it, so that it has no definition here
--
-- Returns 'done', and whether that changed anything: 1 or 0; 'absent' if there is no such schedule.
-- Cost O(log schedules).
-- Safe to repeat.
local SCHEDULE_DEFINITIONS, FIRES, SCHEDULES, SCHEDULE_PROGRESS, PAUSED_SCHEDULES, SCHEDULE_FAULTS, FAILING_SCHEDULES, RESUMED_SCHEDULES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local schedule, how, declared = ARGV[1], ARGV[2], ARGV[3] == '1'

local is_stored = redis.call('HEXISTS', SCHEDULE_DEFINITIONS, schedule) == 1
if not declared and not is_stored then
  return {'absent'}
end
local now = clock(0)
if how == 'pause' then
  redis.call('ZREM', FIRES, schedule)
  redis.call('ZREM', FAILING_SCHEDULES, schedule)
  if redis.call('HEXISTS', PAUSED_SCHEDULES, schedule) == 1 then
    return {'done', 0}
  end
  redis.call('HSET', PAUSED_SCHEDULES, schedule, whole(now))
  return {'done', 1}
end
if redis.call('HDEL', PAUSED_SCHEDULES, schedule) == 0 then
  return {'done', 0}
end
local progress = declared and SCHEDULES or SCHEDULE_PROGRESS
local time, rule = string.match(redis.call('HGET', progress, schedule) or '', '^(%d+) (.*)$')
-- A time some seconds ahead was sent for.
if time and (tonumber(time) < now or tonumber(time) > now + 60000) then
  -- If it was resumed before and has not fired since, the earlier time stays.
  local resumed, before = string.match(redis.call('HGET', RESUMED_SCHEDULES, schedule) or '', '^(%d+) (%d+)$')
  before = resumed == time and before or time
  -- A time far ahead was recorded before the clock was set back.
  if tonumber(before) < now then
    redis.call('HSET', RESUMED_SCHEDULES, schedule, whole(now) .. ' ' .. before)
  end
  redis.call('HSET', progress, schedule, whole(now) .. ' ' .. rule)
end
local failed = string.match(redis.call('HGET', SCHEDULE_FAULTS, schedule) or '', '^%d+ %d+ (%d+) ')
if (tonumber(failed) or 0) > 0 then
  redis.call('ZADD', FAILING_SCHEDULES, 0, schedule)
end
if is_stored then
  redis.call('ZADD', FIRES, whole(now), schedule)
end
return {'done', 1}
