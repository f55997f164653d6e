#!lua flags=allow-oom
-- remove_topic: begins the removal of a topic on one shard, which from then on accepts no new message.
--
-- KEYS[1] conf     hash    gets removed; class becomes general
-- ARGV[1] how      word    drain (delivers what is stored) or force
-- ARGV[2] version  ms      of the settings on the first shard, when it was marked. A shard with a newer one belongs to a topic that was
--                          created since. Empty for the first shard
-- ARGV[3] seen     count   the epoch at which the topic may be removed; empty for any
--
-- Returns 'removing', the way in force (force stays force), and the epoch; or 'resharding', and the new number of shards if they are
--   still being created, else 0; or 'removed' (it was removed before, or is of another topic); or 'undeclared'; or 'epoch' and the
--   epoch there, if it is not `seen` and the topic is not yet being removed in this way.
-- Cost O(1).
-- Safe to repeat.
local CONF = KEYS[1]
local how, version, seen = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local conf = redis.call('HMGET', CONF, 'epoch', 'removed', 'resharding', 'previous', 'version')
if conf[2] == 'gone' or version and (tonumber(conf[5]) or 0) > version then
  return {'removed'}
elseif not conf[1] then
  return {'undeclared'}
elseif conf[3] or conf[4] and conf[4] ~= 'over' then
  return {'resharding', tonumber(conf[3]) or 0}
elseif conf[2] == 'force' or conf[2] == how then
  return {'removing', conf[2], tonumber(conf[1])}
elseif seen and seen ~= tonumber(conf[1]) then
  return {'epoch', conf[1]}
end
-- With `features` set, `clean` does not change the class.
redis.call('HSET', CONF, 'removed', how, 'class', 'general', 'features', 1, 'epoch', conf[1] + 1)
return {'removing', how, conf[1] + 1}
