#!lua flags=allow-oom
-- note_fires: records what became of times of schedules, and returns the times up to which they have fired.
--
-- KEYS[1] schedules         hash   schedule of a configuration -> "<ms> <rule>": it has fired up to that time, by that rule
-- KEYS[2] schedule_progress hash   the same for those that are stored; the rule begins with the version
-- KEYS[3] fires             zset   schedule -> the time at which a manager takes it
-- KEYS[4] paused_schedules  hash   schedule -> the time of the pause
-- KEYS[5] schedule_faults   hash   schedule -> "<missed> <newest missed> <ms of the error> <error>"; missing if there is nothing
-- KEYS[6] failing_schedules zset   those of them that have an error and are not paused, all with score 0
-- ARGV[1] fires     list    for each schedule: its name; its rule, empty for a stored one; its version, empty for one that a
--                           configuration declares; what became of a time: ask (nothing), sent, failed (it is tried again),
--                           refused (it is not) or ran (a message was sent outside its times); that time in ms; the error; the
--                           number of times that were missed since the last one; the newest of them in ms; when to take it next in
--                           ms, 0 to leave that as it is
--
-- Returns 'noted', then for each the recorded time, 0 if there is none, or only one of another rule or version; and 1 if it is paused.
-- Cost O(schedules · log failing schedules).
-- Safe to repeat. While the rule stays the same, a time goes back only if Redis's clock does.
local SCHEDULES, SCHEDULE_PROGRESS, FIRES, PAUSED_SCHEDULES, SCHEDULE_FAULTS, FAILING_SCHEDULES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

local now = clock(0)
-- Messages are sent some seconds ahead. A time far beyond that was recorded before the clock was set back.
local newest = now + 60000
local has_faults = redis.call('EXISTS', SCHEDULE_FAULTS) == 1

local function note_faults(schedule, missed, newest_missed, error)
  if not has_faults and missed == 0 and error == '' then
    return
  end
  local count, at, failed, last = string.match(redis.call('HGET', SCHEDULE_FAULTS, schedule) or '', '^(%d+) (%d+) (%d+) (.*)$')
  count = (tonumber(count) or 0) + missed
  at = math.max(tonumber(at) or 0, newest_missed)
  -- An error that goes on keeps the time at which it began.
  failed = error == '' and 0 or last == error and tonumber(failed) or now
  if count == 0 and failed == 0 then
    redis.call('HDEL', SCHEDULE_FAULTS, schedule)
  else
    redis.call('HSET', SCHEDULE_FAULTS, schedule, whole(count) .. ' ' .. whole(at) .. ' ' .. whole(failed) .. ' ' .. error)
  end
  if failed == 0 then
    redis.call('ZREM', FAILING_SCHEDULES, schedule)
  elseif redis.call('HEXISTS', PAUSED_SCHEDULES, schedule) == 0 then
    redis.call('ZADD', FAILING_SCHEDULES, 0, schedule)
  end
end

local reply = {'noted'}
for i = 1, #ARGV, 9 do
  local schedule, rule, version = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local outcome, time, error = ARGV[i + 3], tonumber(ARGV[i + 4]), ARGV[i + 5]
  local missed, newest_missed, take = tonumber(ARGV[i + 6]), tonumber(ARGV[i + 7]), tonumber(ARGV[i + 8])
  local is_stored = version ~= ''
  local progress = is_stored and SCHEDULE_PROGRESS or SCHEDULES
  local noted, of = string.match(redis.call('HGET', progress, schedule) or '', '^(%d+) (.*)$')
  local is_same = of == rule
  if is_stored then
    is_same = string.match(of or '', '^(%d+) ') == version
  end
  noted = is_same and tonumber(noted) or 0
  if noted > newest then
    noted = 0
  end
  -- One that was changed or removed meanwhile keeps what the change has noted.
  if is_same or not is_stored then
    if outcome == 'failed' then
      -- Another manager may have sent it since.
      if time > noted then
        note_faults(schedule, 0, 0, error)
      end
    elseif outcome == 'ran' then
      note_faults(schedule, 0, 0, '')
    elseif outcome ~= 'ask' and time > noted then
      redis.call('HSET', progress, schedule, ARGV[i + 4] .. ' ' .. (is_stored and of or rule))
      noted = time
      note_faults(schedule, missed, newest_missed, error)
    end
    if take > 0 then
      redis.call('ZADD', FIRES, 'XX', take, schedule)
    end
  end
  reply[#reply + 1] = noted
  reply[#reply + 1] = redis.call('HEXISTS', PAUSED_SCHEDULES, schedule)
end
return reply
