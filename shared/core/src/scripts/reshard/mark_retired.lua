#!lua flags=allow-oom
-- mark_retired: records at a topic's first shard which retired shards may still have keys, or that their keys are gone.
--
-- KEYS[1] conf     hash    gets or loses retired
-- ARGV[1] start    number  the first retired shard
-- ARGV[2] end      number  the shard after the last
-- ARGV[3] gone     flag    1 if their keys are gone
--
-- Returns 'marked'.
-- Cost O(1).
-- Safe to repeat, even late: shards of other reshards stay recorded.
local CONF = KEYS[1]
local start, behind, gone = ARGV[1], ARGV[2], ARGV[3] == '1'

local noted = redis.call('HGET', CONF, 'retired')
local first, last = string.match(noted or '', '^(%d+) (%d+)$')
if not gone then
  start = math.min(tonumber(start), tonumber(first or start))
  behind = math.max(tonumber(behind), tonumber(last or behind))
  redis.call('HSET', CONF, 'retired', start .. ' ' .. behind)
elseif noted == start .. ' ' .. behind then
  redis.call('HDEL', CONF, 'retired')
end
return {'marked'}
