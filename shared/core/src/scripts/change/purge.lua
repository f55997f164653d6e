#!lua flags=allow-oom
-- purge: removes messages in garbage for good.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] items    pairs   message id, the garbage time that the caller saw; at most 50
--
-- Returns 'purged', then for each item its outcome: purged, unknown.
-- Cost O(n log N).
-- Safe to repeat: a purged message is unknown the second time.
local g, first = read_sizes(groups[tonumber(ARGV[3])]), 4

local reply = {'purged'}
for i = first, #ARGV, 2 do
  local id, time = ARGV[i], tonumber(ARGV[i + 1])
  if tonumber(redis.call('ZSCORE', g.garbage, id)) == time then
    local m = message(id)
    redis.call('ZREM', g.garbage, id)
    redis.call('HDEL', g.garbage_info, id)
    redis.call('ZREM', g.garbage_hook, id)
    end_copy(g, m, 'purged', 3)
    release(g, m)
    reply[#reply + 1] = 'purged'
  else
    reply[#reply + 1] = 'unknown'
  end
end
finish()
return reply
