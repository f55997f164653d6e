#!lua flags=allow-oom
-- retire: lets a group get nothing new, to be removed once it is empty or as it is; or takes that back.
--
-- ARGV[3] group    number  consumer group, as its place among all groups, from 1
-- ARGV[4] how      word    drain (its consumers finish what it has), drop (what it has is dropped), keep (go on as before)
--
-- Returns done or same; or 'last' (the only group that gets messages cannot be retired).
-- Cost O(groups).
-- Safe to repeat.
local g, how = groups[tonumber(ARGV[3])], ARGV[4]

local field, others = 'retiring:' .. g.name, 0
for _, other in ipairs(groups) do
  if other ~= g and not conf['retiring:' .. other.name] then
    others = others + 1
  end
end
if (conf[field] or 'keep') == how then
  return {'same'}
elseif how == 'keep' then
  redis.call('HDEL', CONF, field)
elseif others == 0 then
  return {'last'}
else
  redis.call('HSET', CONF, field, how)
end
return {'done'}
