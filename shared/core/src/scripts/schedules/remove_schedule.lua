#!lua flags=allow-oom
-- remove_schedule: removes a schedule and all that is known of it. Messages that it has sent stay.
--
-- KEYS[1] schedule_definitions hash    schedule -> its definition
-- KEYS[2] schedule_names       zset    the schedules, all with score 0
-- KEYS[3] fires                zset    schedule -> the time at which a manager takes it
-- KEYS[4] schedule_progress    hash    schedule -> "<ms> <version> <rule>": it has fired up to that time, by that rule
-- KEYS[5] paused_schedules     hash    schedule -> the time of the pause
-- KEYS[6] schedule_faults      hash    schedule -> its missed times and its last error
-- KEYS[7] failing_schedules    zset    those that have an error and are not paused, all with score 0
-- KEYS[8] resumed_schedules    hash    schedule -> the time of its last resume, and that up to which it had fired before
-- ARGV[1] schedule    name
-- ARGV[2] at          number   the version that it must have; empty: any
--
-- Returns 'removed'; 'absent' if there is none; 'other' and the version if it is another one.
-- Cost O(log schedules).
-- Safe to repeat: the second time there is none.
local SCHEDULE_DEFINITIONS, SCHEDULE_NAMES, FIRES, SCHEDULE_PROGRESS, PAUSED_SCHEDULES, SCHEDULE_FAULTS, FAILING_SCHEDULES, RESUMED_SCHEDULES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local schedule, at = ARGV[1], tonumber(ARGV[2])

if redis.call('HEXISTS', SCHEDULE_DEFINITIONS, schedule) == 0 then
  return {'absent'}
end
local version = string.match(redis.call('HGET', SCHEDULE_PROGRESS, schedule) or '', '^%d+ (%d+) ')
version = tonumber(version) or 0
if at and at ~= version then
  return {'other', whole(version)}
end
for _, hash in ipairs({SCHEDULE_DEFINITIONS, SCHEDULE_PROGRESS, PAUSED_SCHEDULES, SCHEDULE_FAULTS, RESUMED_SCHEDULES}) do
  redis.call('HDEL', hash, schedule)
end
redis.call('ZREM', SCHEDULE_NAMES, schedule)
redis.call('ZREM', FIRES, schedule)
redis.call('ZREM', FAILING_SCHEDULES, schedule)
return {'removed'}
