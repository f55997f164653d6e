-- bury: shared by remove_shard and bury_topic.

-- Leaves nothing of a `conf` but the record that its topic was removed, for a while. Only an explicit declaration replaces it.
local function bury(conf, epoch, keep)
  redis.call('DEL', conf)
  redis.call('HSET', conf, 'layout', 1, 'epoch', epoch, 'removed', 'gone')
  redis.call('PEXPIRE', conf, keep)
end
