#!lua flags=allow-oom
-- join: creates the group of one running consumer, or renews its lease.
--
-- KEYS[1] conf     hash    epoch, class, groups, leases of groups of instances
-- KEYS[2] ready    stream  one entry for each delivery
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    its group
--
-- Returns joined or heartbeat, and the epoch; or 'retiring' (silent for too long: use another name); or 'undeclared'.
-- Cost O(groups).
-- Safe to repeat.
local CONF, READY = KEYS[1], KEYS[2]
local virtual, group = ARGV[1], ARGV[2]

local conf = redis.call('HMGET', CONF, 'epoch', 'groups', 'instance_ttl', 'retiring:' .. group)
if not conf[1] then
  return {'undeclared'}
elseif conf[4] then
  return {'retiring'}
end
local epoch, outcome = tonumber(conf[1]), 'heartbeat'
local names, known = {}, false
for name in string.gmatch(conf[2], '%S+') do
  names[#names + 1] = name
  known = known or name == group
end
-- Reads from the first entry, even if only the stream was lost.
local made = redis.pcall('XGROUP', 'CREATE', READY, group, '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
  return redis.error_reply(made.err)
end
if not known then
  names[#names + 1] = group
  table.sort(names)
  epoch, outcome = epoch + 1, 'joined'
  redis.call('HSET', CONF, 'epoch', epoch, 'class', 'general', 'groups', table.concat(names, ' '))
end
redis.call('HSET', CONF, 'instance:' .. group, clock(virtual) + tonumber(conf[3]))
return {outcome, epoch}
