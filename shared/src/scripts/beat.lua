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
local reply = {'beat', tonumber(redis.call('HGET', TOPICS, ':version')) or 0}
-- One that leaves has a lease that is over, and goes with the others of that kind.
redis.call('ZADD', MANAGERS, lease > 0 and now + lease or 0, manager)
for _, name in ipairs(redis.call('ZRANGE', MANAGERS, '(' .. now, '+inf', 'BYSCORE')) do
  reply[#reply + 1] = name
end
redis.call('ZREMRANGEBYSCORE', MANAGERS, '-inf', now)
return reply
