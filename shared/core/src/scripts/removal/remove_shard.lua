#!lua flags=allow-oom
-- remove_shard: removes the keys of a shard of a topic that is being removed: at once if it is forced, else once no message is left.
--
-- ARGV[3] keep     ms      for the topic's first shard, which comes last: how long its `conf` records the removal, so that no process
--                          brings the topic back; 0 for any other shard
-- The last of KEYS is `in_transit`.
--
-- Returns 'left'; the number of messages, or of entries of the longest stream if those are more, 0 if the shard is gone; its epoch.
-- Cost O(groups): Redis frees the memory in the background.
-- Safe to repeat: the topic is then undeclared here.
local keep = tonumber(ARGV[3])

read_all_sizes()
local left = size.payload
for _, g in ipairs(groups) do
  left = math.max(left, g.stream)
end
local of_conf = redis.call('HMGET', CONF, 'epoch', 'version')
local epoch = tonumber(of_conf[1])
if not conf.removed then
  return redis.error_reply('ERR remove_shard: the topic is not being removed')
elseif left > 0 and conf.removed ~= 'force' then
  return {'left', left, epoch}
end
redis.call('UNLINK', unpack(KEYS))
if keep > 0 then
  -- It has none of the fields by which a script knows that a shard is there.
  redis.call('HSET', CONF, 'removed', 'gone', 'last_epoch', epoch, 'version', of_conf[2] or 1)
  redis.call('PEXPIRE', CONF, keep)
end
return {'left', 0, epoch}
