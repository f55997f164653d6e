#!lua flags=allow-oom
-- pause: pauses or resumes a topic or one of its groups. While it is paused, nothing new becomes ready there.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1; 0 for the topic
-- ARGV[4] paused   flag    1 pauses, 0 resumes
--
-- Returns done or same.
-- Cost O(1).
-- Safe to repeat.
local g, pause = groups[tonumber(ARGV[3])], ARGV[4] == '1'

local field = g and 'paused:' .. g.name or 'paused'
if pause == (conf[field] and true or false) then
  return {'same'}
end
if pause then
  redis.call('HSET', CONF, field, 1)
  if g then
    -- Messages that become due for a paused group go to its backlog, which a plain topic does not have.
    redis.call('HSET', CONF, 'class', 'general')
  end
else
  redis.call('HDEL', CONF, field)
  wake(WAKE, STATS, false, 0)
end
return {'done'}
