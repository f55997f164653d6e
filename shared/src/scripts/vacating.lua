#!lua flags=allow-oom
-- vacating: notes at a topic's first shard which shards were given up and may still have keys, or that these are gone.
--
-- KEYS[1] conf     hash    gets or loses vacating
-- ARGV[1] start    number  the first of the shards
-- ARGV[2] end      number  the one behind the last
-- ARGV[3] gone     flag    1 if their keys are gone
--
-- Returns 'vacating'.
-- Cost O(1).
-- Safe to repeat, and late: shards of other reshardings stay noted.
local CONF = KEYS[1]
local start, behind, gone = ARGV[1], ARGV[2], ARGV[3] == '1'

local noted = redis.call('HGET', CONF, 'vacating')
local first, last = string.match(noted or '', '^(%d+) (%d+)$')
if not gone then
  start = math.min(tonumber(start), tonumber(first or start))
  behind = math.max(tonumber(behind), tonumber(last or behind))
  redis.call('HSET', CONF, 'vacating', start .. ' ' .. behind)
elseif noted == start .. ' ' .. behind then
  redis.call('HDEL', CONF, 'vacating')
end
return {'vacating'}
