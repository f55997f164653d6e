#!lua flags=allow-oom
-- retire: stops a group from getting new messages, to drain or drop it and then remove it; or undoes that.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] how      word    drain (its consumers finish its messages), drop (its messages are dropped), keep (undo)
--
-- Returns done or same.
-- Cost O(1).
-- Safe to repeat.
--
-- It may be the last group that gets messages: what becomes due then waits for another group.
local g, how = groups[tonumber(ARGV[3])], ARGV[4]

local field = 'retiring:' .. g.name
if (conf[field] or 'keep') == how then
  return {'same'}
elseif how == 'keep' then
  redis.call('HDEL', CONF, field)
else
  -- The plain scripts know nothing of retiring groups.
  redis.call('HSET', CONF, field, how, 'class', 'general')
end
return {'done'}
