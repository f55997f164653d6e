#!lua flags=allow-oom
-- drop_consumer: removes a consumer of a group, unless it holds a message.
--
-- KEYS[1] ready    stream  one entry for each delivery
-- ARGV[1] group    name    consumer group
-- ARGV[2] consumer name    the consumer
--
-- Returns 'dropped', 'held' (nothing changed) or 'unknown' (no such group).
-- Cost O(1). XGROUP DELCONSUMER alone would drop the deliveries that the consumer holds.
-- Safe to repeat.
local READY = KEYS[1]
local group, consumer = ARGV[1], ARGV[2]

local held = redis.pcall('XPENDING', READY, group, '-', '+', 1, consumer)
if held.err and not string.find(held.err, 'NOGROUP', 1, true) then
  return redis.error_reply(held.err)
elseif held.err then
  return {'unknown'}
elseif #held > 0 then
  return {'held'}
end
redis.call('XGROUP', 'DELCONSUMER', READY, group, consumer)
return {'dropped'}
