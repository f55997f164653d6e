#!lua flags=allow-oom
-- enable_notices: from now on every message that a group gives up is noted for its hook.
--
-- KEYS[1] conf     hash    epoch, which groups ask for notices
-- ARGV[1] group    name    consumer group
--
-- Returns enabled, same, or 'undeclared'.
-- Cost O(1).
-- Safe to repeat.
--
-- What was in garbage before is not noted. The mark stays: a consumer that is not there for a while
-- finds what was given up meanwhile.
local CONF = KEYS[1]
local group = ARGV[1]

local conf = redis.call('HMGET', CONF, 'epoch', 'notices:' .. group)
if not conf[1] then
  return {'undeclared'}
elseif conf[2] then
  return {'same'}
end
redis.call('HSET', CONF, 'notices:' .. group, 1)
return {'enabled'}
