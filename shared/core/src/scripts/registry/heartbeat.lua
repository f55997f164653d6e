#!lua flags=allow-oom
-- heartbeat: renews a manager's lease on its assignment, and lists the managers that are alive.
--
-- KEYS[1] managers zset    manager -> end of its lease, ms
-- KEYS[2] topics   hash    registered topics, and the registry's version
-- ARGV[1] manager  text    the caller
-- ARGV[2] lease    ms      time for which it counts as alive; 0 leaves
--
-- Returns 'heartbeat', the registry's version, then the managers that are alive.
-- Cost O(managers).
-- Safe to repeat.
local MANAGERS, TOPICS = KEYS[1], KEYS[2]
local manager, lease = ARGV[1], tonumber(ARGV[2])

local now = clock(0)
local reply = {'heartbeat', tonumber(redis.call('HGET', TOPICS, ':version')) or 0}
-- A manager that leaves gets an expired lease, and is removed below with all others whose lease has expired.
redis.call('ZADD', MANAGERS, lease > 0 and now + lease or 0, manager)
for _, name in ipairs(redis.call('ZRANGE', MANAGERS, '(' .. now, '+inf', 'BYSCORE')) do
  reply[#reply + 1] = name
end
redis.call('ZREMRANGEBYSCORE', MANAGERS, '-inf', now)
return reply
