#!lua flags=allow-oom
-- take_garbage_hooks: leases messages in garbage whose hook is due to a consumer.
--
-- KEYS[1] conf         hash    which groups have enabled the garbage hook
-- KEYS[2] stats        hash    last_time
-- KEYS[3] garbage      zset    id -> time
-- KEYS[4] garbage_info hash    id -> reason, attempts, last error
-- KEYS[5] garbage_hook zset    id -> time from which its hook may run
-- ARGV[1] now          ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group        name    consumer group
-- ARGV[3] batch        count   most pending hooks to look at, 1 to 100
-- ARGV[4] lease        ms      time until a hook may be taken again, unless it was finished or its lease renewed
--
-- Returns 'taken', 1 if more may be due, then for each hook its id, garbage time and `garbage_info` text; or 'disabled'.
-- Cost O(n log N).
-- Safe to repeat: a hook that was taken is not due before its lease ends.
--
-- The hook of a message that is no longer in garbage (requeued, purged) is dropped without running.
local CONF, STATS, GARBAGE, GARBAGE_INFO, GARBAGE_HOOK = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local virtual, group, batch, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if not redis.call('HGET', CONF, 'garbage_hook:' .. group) then
  return {'disabled'}
end
local now = clock(virtual, redis.call('HGET', STATS, 'last_time'))
local due = redis.call('ZRANGE', GARBAGE_HOOK, '-inf', now, 'BYSCORE', 'LIMIT', 0, batch)
-- A key of a wrong type must fail before the first write, because nothing is rolled back.
redis.call('ZCARD', GARBAGE)
redis.call('HLEN', GARBAGE_INFO)

local reply = {'taken', #due == batch and 1 or 0}
for _, id in ipairs(due) do
  local time = redis.call('ZSCORE', GARBAGE, id)
  if time then
    redis.call('ZADD', GARBAGE_HOOK, now + lease, id)
    reply[#reply + 1] = id
    reply[#reply + 1] = time
    reply[#reply + 1] = redis.call('HGET', GARBAGE_INFO, id) or ''
  else
    redis.call('ZREM', GARBAGE_HOOK, id)
  end
end
return reply
