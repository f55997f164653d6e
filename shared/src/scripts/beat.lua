#!lua flags=allow-oom
-- beat: renews a manager's lease on its share of the work, and tells it who else is there.
--
-- KEYS[1] managers zset    manager -> end of its lease, ms
-- KEYS[2] topics   hash    registered topics, and the registry's version
-- ARGV[1] manager  text    the caller
-- ARGV[2] lease    ms      how long it counts as alive; 0 leaves
--
-- Returns 'beat', the registry's version, then the managers alive.
-- Cost O(managers).
-- Safe to repeat.
local MANAGERS, TOPICS = KEYS[1], KEYS[2]
local manager, lease = ARGV[1], tonumber(ARGV[2])

local now = clock(0)
redis.call('ZREMRANGEBYSCORE', MANAGERS, '-inf', now)
if lease > 0 then
  redis.call('ZADD', MANAGERS, now + lease, manager)
else
  redis.call('ZREM', MANAGERS, manager)
end
local reply = {'beat', tonumber(redis.call('HGET', TOPICS, ':version')) or 0}
for _, name in ipairs(redis.call('ZRANGE', MANAGERS, 0, -1)) do
  reply[#reply + 1] = name
end
return reply
