#!lua flags=allow-oom
-- open_shard: prepares a new, declared shard to take over from others.
--
-- KEYS[1] conf     hash    gets previous, held, epoch and the flags
-- KEYS[2] stats    hash    gets seq
-- ARGV[1] previous number  the first of the shards that are given up; empty to set flags alone
-- ARGV[2] epoch    count   the first epoch of the topic with the new shards
-- ARGV[3] arrivals count   more than arrived at any of the others, so that what arrives here comes behind
-- ARGV[4] flags    pairs   fields of `conf` that are no settings, as the others have them
--
-- Returns 'opened'.
-- Cost O(flags).
-- Safe to repeat.
local CONF, STATS = KEYS[1], KEYS[2]
local previous, epoch, arrivals, first = ARGV[1], ARGV[2], tonumber(ARGV[3]), 4

if previous ~= '' and redis.call('HEXISTS', CONF, 'previous') == 0 then
  redis.call('HSET', CONF, 'previous', previous, 'held', 0, 'epoch', epoch)
  local seq = tonumber(redis.call('HGET', STATS, 'seq')) or 0
  redis.call('HSET', STATS, 'seq', math.max(seq, arrivals))
end
if #ARGV >= first then
  redis.call('HSET', CONF, unpack(ARGV, first))
end
return {'opened'}
