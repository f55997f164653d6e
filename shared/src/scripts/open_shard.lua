#!lua flags=allow-oom
-- open_shard: prepares a new, declared shard to take over from others.
--
-- KEYS[1] conf     hash    gets previous, horizon, epoch and the flags; loses flags from before
-- KEYS[2] stats    hash    gets seq
-- ARGV[1] previous number  the first of the shards that are given up; empty to set flags alone
-- ARGV[2] epoch    count   the first epoch of the topic with the new shards
-- ARGV[3] arrivals count   more than arrived at any of the others, so that what arrives here comes behind
-- ARGV[4] flags    pairs   fields of `conf` that are no settings, as the others have them
--
-- Returns 'opened'.
-- Cost O(fields).
-- Safe to repeat.
local CONF, STATS = KEYS[1], KEYS[2]
local previous, epoch, arrivals, first = ARGV[1], ARGV[2], tonumber(ARGV[3]), 4

if redis.call('HGET', CONF, 'previous') == 'over' then
  -- That was done, and has ended.
  return {'opened'}
end
if previous ~= '' then
  -- What was paused when somebody began with this, and stopped, may go on by now.
  for _, field in ipairs(redis.call('HKEYS', CONF)) do
    if string.find(field, '^paused') or string.find(field, '^retiring:') then
      redis.call('HDEL', CONF, field)
    end
  end
end
if previous ~= '' and redis.call('HEXISTS', CONF, 'previous') == 0 then
  redis.call('HSET', CONF, 'previous', previous, 'horizon', 0, 'epoch', epoch)
  local seq = tonumber(redis.call('HGET', STATS, 'seq')) or 0
  redis.call('HSET', STATS, 'seq', math.max(seq, arrivals))
end
if #ARGV >= first then
  redis.call('HSET', CONF, unpack(ARGV, first))
  for i = first, #ARGV, 2 do
    -- The plain scripts know nothing of groups that are paused or get nothing new.
    if string.find(ARGV[i], '^paused:') or string.find(ARGV[i], '^retiring:') then
      redis.call('HSET', CONF, 'class', 'full')
    end
  end
end
return {'opened'}
