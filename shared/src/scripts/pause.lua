#!lua flags=allow-oom
-- pause: stops or resumes a topic: while paused nothing new becomes ready.
--
-- KEYS[1] conf     hash    pause flag
-- KEYS[2] stats    hash    alarm
-- KEYS[3] wake     channel the mover listens on
-- ARGV[1] paused   flag    1 pauses, 0 resumes
--
-- Returns changed, same, or 'undeclared'.
-- Cost O(1).
-- Safe to repeat.
local CONF, STATS, WAKE = KEYS[1], KEYS[2], KEYS[3]
local pause = ARGV[1] == '1'

local conf = redis.call('HMGET', CONF, 'epoch', 'paused')
if not conf[1] then
  return {'undeclared'}
elseif pause == (conf[2] and true or false) then
  return {'same'}
end
-- A wrong type must show before the first write: nothing is rolled back.
redis.call('HLEN', STATS)
if pause then
  redis.call('HSET', CONF, 'paused', 1)
else
  redis.call('HDEL', CONF, 'paused')
  wake(WAKE, STATS, false, 0)
end
return {'changed'}
