#!lua flags=allow-oom
-- enable_garbage_hook: from now on, queues a garbage hook for each message that a group moves to garbage.
--
-- KEYS[1] conf     hash    epoch, which groups have enabled the garbage hook
-- ARGV[1] group    name    consumer group
--
-- Returns enabled, same, or 'undeclared'.
-- Cost O(1).
-- Safe to repeat.
--
-- No hook is queued for messages already in garbage. The flag stays: a consumer that was gone for a while finds the hooks of
-- what went to garbage in the meantime.
local CONF = KEYS[1]
local group = ARGV[1]

local conf = redis.call('HMGET', CONF, 'epoch', 'garbage_hook:' .. group)
if not conf[1] then
  return {'undeclared'}
elseif conf[2] then
  return {'same'}
end
redis.call('HSET', CONF, 'garbage_hook:' .. group, 1)
return {'enabled'}
