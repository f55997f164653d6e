#!lua flags=allow-oom
-- note_fires: records the times up to which schedules have fired, and returns the recorded times.
--
-- KEYS[1] schedules hash    schedule -> "<ms> <rule>": it has fired up to that time, by that rule
-- ARGV[1] fires     list    for each schedule: its name; the time up to which it has fired, in ms, 0 to only ask; its rule
--
-- Returns 'noted', then the recorded time of each; 0 if there is none, or only one of another rule.
-- Cost O(schedules).
-- Safe to repeat. While the rule stays the same, a time goes back only if Redis's clock does.
local SCHEDULES = KEYS[1]

-- Messages are sent some seconds ahead. A time far beyond that was recorded before the clock was set back.
local newest = clock(0) + 60000
local reply = {'noted'}
for i = 1, #ARGV, 3 do
  local schedule, time, rule = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  local noted, of = string.match(redis.call('HGET', SCHEDULES, schedule) or '', '^(%d+) (.*)$')
  noted = of == rule and tonumber(noted) or 0
  if noted > newest then
    noted = 0
  end
  if time > noted then
    redis.call('HSET', SCHEDULES, schedule, ARGV[i + 1] .. ' ' .. rule)
    noted = time
  end
  reply[#reply + 1] = noted
end
return reply
