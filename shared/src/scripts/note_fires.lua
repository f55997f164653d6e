#!lua flags=allow-oom
-- note_fires: notes up to which times schedules have fired, and says what is noted.
--
-- KEYS[1] schedules hash    schedule -> "<ms> <rule>": it has fired up to then, by that rule
-- ARGV[1] fires     list    for each schedule: its name; up to when it has fired, in ms, 0 only asks; its rule
--
-- Returns 'noted', then the time that is noted of each; 0 for none, or one that is noted of another rule.
-- Cost O(schedules).
-- Safe to repeat. While the rule stays, a time goes back only together with Redis's clock.
local SCHEDULES = KEYS[1]

-- Messages are sent some seconds ahead. A time beyond that was noted before the clock was set back.
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
