#!lua flags=allow-oom
-- create_shard: prepares a newly declared shard as a successor of the retiring shards.
--
-- KEYS[1] conf     hash    gets previous, watermark, epoch and the flags; loses flags from before
-- KEYS[2] stats    hash    gets seq
-- ARGV[1] previous number  the first retiring shard; empty to set flags only
-- ARGV[2] epoch    count   the first epoch of the topic with the new shards
-- ARGV[3] arrivals count   more than the arrivals of any retiring shard, so that what arrives here sorts after them
-- ARGV[4] flags    pairs   fields of `conf` that are not settings, as the retiring shards have them
--
-- Returns 'created'.
-- Cost O(fields).
-- Safe to repeat.
local CONF, STATS = KEYS[1], KEYS[2]
local previous, epoch, arrivals, first = ARGV[1], ARGV[2], tonumber(ARGV[3]), 4

if redis.call('HGET', CONF, 'previous') == 'over' then
  -- The shard was created before, and its reshard has ended.
  return {'created'}
end
if previous ~= '' then
  -- An earlier attempt may have stopped midway. What was paused then may have been resumed since.
  for _, field in ipairs(redis.call('HKEYS', CONF)) do
    if string.find(field, '^paused') or string.find(field, '^retiring:') then
      redis.call('HDEL', CONF, field)
    end
  end
end
if previous ~= '' and redis.call('HEXISTS', CONF, 'previous') == 0 then
  redis.call('HSET', CONF, 'previous', previous, 'watermark', 0, 'epoch', epoch)
  local seq = tonumber(redis.call('HGET', STATS, 'seq')) or 0
  redis.call('HSET', STATS, 'seq', math.max(seq, arrivals))
end
if #ARGV >= first then
  redis.call('HSET', CONF, unpack(ARGV, first))
  for i = first, #ARGV, 2 do
    -- The plain scripts know nothing of paused or retiring groups.
    if string.find(ARGV[i], '^paused:') or string.find(ARGV[i], '^retiring:') then
      redis.call('HSET', CONF, 'class', 'general')
    end
  end
end
return {'created'}
