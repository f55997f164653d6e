#!lua flags=allow-oom
-- forget: drops tombstones that are older than the dedup window, or than an instant, oldest first.
--
-- KEYS[1] stats    hash    last_time
-- KEYS[2] tomb     zset    ended ids
-- KEYS[3] into     hash    merged id -> the message that it was merged into
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] dedup    ms      the dedup window, for which ended ids are remembered, or the negative of an instant
-- ARGV[3] batch    count   most tombstones to drop, 1 to 500
--
-- Returns 'forgotten', the number of tombstones dropped, the number of old ones left.
-- Cost O(log N), plus O(1) for each tombstone dropped.
-- Safe to repeat. It reads no settings: a shard that is gone has no tombstones.
local STATS, TOMB, INTO = KEYS[1], KEYS[2], KEYS[3]
local virtual, dedup, batch = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local now = clock(virtual, redis.call('HGET', STATS, 'last_time'))
local oldest = dedup < 0 and oldest_tombstone(-dedup, 0) or oldest_tombstone(now, dedup)
local old = redis.call('ZCOUNT', TOMB, '-inf', '(' .. whole(oldest))
local dropped = math.min(old, batch)
local merged, all = redis.call('HLEN', INTO), redis.call('ZCARD', TOMB)
if merged > 0 and dropped == all then
  redis.call('UNLINK', INTO)
elseif merged > 0 and dropped > 0 then
  redis.call('HDEL', INTO, unpack(redis.call('ZRANGE', TOMB, 0, dropped - 1)))
end
if dropped > 0 then
  redis.call('ZREMRANGEBYRANK', TOMB, 0, dropped - 1)
end
return {'forgotten', dropped, old - dropped}
