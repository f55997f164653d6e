#!lua flags=allow-oom
-- declare: registers one shard of a topic, or gives it new settings, and makes its group.
--
-- KEYS[1] conf     hash    epoch, class, settings
-- KEYS[2] ready    stream  one entry a delivery
-- ARGV[1] mode     word    create (what is there stays) or update (settings are replaced)
-- ARGV[2] shards   count   fixed for the life of the topic
-- ARGV[3] group    name    the topic's only group
-- ARGV[4] settings json    all settings of the topic
--
-- Returns created, updated or kept, the epoch, the settings that hold now; or 'shards' or 'group'
--   and the value there, which the caller's differs from.
-- Cost O(1).
-- Safe to repeat.
local CONF, READY = KEYS[1], KEYS[2]
local mode, shards, group, settings = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local conf = redis.call('HMGET', CONF, 'epoch', 'shards', 'groups', 'settings')
local epoch = tonumber(conf[1])
if epoch and conf[2] ~= shards then
  return {'shards', conf[2]}
elseif epoch and conf[3] ~= group then
  return {'group', conf[3]}
end
-- From the first entry on, so that a group that was lost misses nothing.
local made = redis.pcall('XGROUP', 'CREATE', READY, group, '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
  return redis.error_reply(made.err)
end
local outcome = 'kept'
if not epoch then
  epoch, outcome = 1, 'created'
  redis.call('HSET', CONF, 'layout', 1, 'epoch', epoch, 'class', 'plain', 'shards', shards,
    'groups', group, 'settings', settings)
elseif mode == 'update' and conf[4] ~= settings then
  epoch, outcome = epoch + 1, 'updated'
  redis.call('HSET', CONF, 'epoch', epoch, 'settings', settings)
else
  settings = conf[4]
end
return {outcome, epoch, settings}
