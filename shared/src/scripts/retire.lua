#!lua flags=allow-oom
-- retire: lets a group get nothing new, to be removed once it is empty or as it is; or takes that back.
--
-- ARGV[3] group    number  consumer group, as its place among all groups, from 1
-- ARGV[4] how      word    drain (its consumers finish what it has), drop (what it has is dropped), keep (go on as before)
--
-- Returns done or same.
-- Cost O(1).
-- Safe to repeat.
--
-- It may be the last group that gets messages: what becomes due then waits for another one.
local g, how = groups[tonumber(ARGV[3])], ARGV[4]

local field = 'retiring:' .. g.name
if (conf[field] or 'keep') == how then
  return {'same'}
elseif how == 'keep' then
  redis.call('HDEL', CONF, field)
else
  -- The plain scripts know nothing of groups that get nothing new.
  redis.call('HSET', CONF, field, how, 'class', 'full')
end
return {'done'}
