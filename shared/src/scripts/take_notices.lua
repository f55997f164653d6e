#!lua flags=allow-oom
-- take_notices: hands out messages in garbage whose hook is due, for the time of a lease.
--
-- KEYS[1] conf     hash    which groups ask for notices
-- KEYS[2] stats    hash    last_time
-- KEYS[3] garbage  zset    id -> time
-- KEYS[4] dead     hash    id -> reason, attempts, last error
-- KEYS[5] notices  zset    id -> time from which its hook may be tried
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    consumer group
-- ARGV[3] batch    count   most notices to look at, 1 to 100
-- ARGV[4] lease    ms      when a notice may be taken again, unless it was finished or kept
--
-- Returns 'taken', 1 if more may be due, then for each its id, garbage time and `dead` text; or 'disabled'.
-- Cost O(n log N).
-- Safe to repeat: what was taken is not due before its lease is over.
--
-- One that is not in garbage any more (requeued, purged) is dropped: there is nothing to tell.
local CONF, STATS, GARBAGE, DEAD, NOTICES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local virtual, group, batch, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if not redis.call('HGET', CONF, 'notices:' .. group) then
  return {'disabled'}
end
local now = clock(virtual, redis.call('HGET', STATS, 'last_time'))
local due = redis.call('ZRANGE', NOTICES, '-inf', now, 'BYSCORE', 'LIMIT', 0, batch)
-- A wrong type must show before the first write: nothing is rolled back.
redis.call('ZCARD', GARBAGE)
redis.call('HLEN', DEAD)

local reply = {'taken', #due == batch and 1 or 0}
for _, id in ipairs(due) do
  local time = redis.call('ZSCORE', GARBAGE, id)
  if time then
    redis.call('ZADD', NOTICES, now + lease, id)
    reply[#reply + 1] = id
    reply[#reply + 1] = time
    reply[#reply + 1] = redis.call('HGET', DEAD, id) or ''
  else
    redis.call('ZREM', NOTICES, id)
  end
end
return reply
