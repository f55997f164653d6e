#!lua flags=allow-oom
-- migrate_in: puts messages that migrate_out took out of a retiring shard into this one.
--
-- ARGV[3] ready      count   the shard's max_ready while a message has a priority or a merge key, if the topic sets none
-- ARGV[4] old        range   the retiring shards: first and last, separated by a space
-- ARGV[5] from       number  the retiring shard of the messages
-- ARGV[6] batch      number  their batch, 0 for none
-- ARGV[7] arrivals   count   that shard's arrivals, so that what arrives here sorts after them
-- ARGV[8] watermark  ms      that shard's low watermark: nothing due before it will come from there; -1 if nothing will
-- ARGV[9] tats       pairs   group, and the time up to which its rate is used up there; separated by spaces
-- ARGV[10] items     pairs   id, bundle; at most 50
--
-- Returns 'taken', then the ids that must go back, because this shard has other messages of the same ids.
-- Cost O(n log N) for each group.
-- Safe to repeat: a batch migrates in once, and the reply to a repeat is the same.
local default_window, from, batch = ARGV[3], ARGV[5], tonumber(ARGV[6])
local watermark_there, tats, first = tonumber(ARGV[8]), ARGV[9], 10
local oldest, youngest = string.match(ARGV[4], '^(%d+) (%d+)$')
local FOREVER = 9007199254740991

read_all_sizes()
local known = redis.call('HMGET', CONF, 'from:' .. from, 'previous')
local last_batch, last_refused = string.match(known[1] or '0 ', '^(%d+) (.*)$')
local reply = {'taken'}
if known[2] == 'over' then
  -- Another caller has reported that everything has migrated in, and this one did not notice.
  return reply
end
if batch > tonumber(last_batch) then
  local windowed = false
  for i = first, #ARGV, 2 do
    if redis.call('HEXISTS', PAYLOAD, ARGV[i]) == 1 then
      reply[#reply + 1] = ARGV[i]
    else
      local m = unwrap(ARGV[i], ARGV[i + 1])
      windowed = windowed or m.merge ~= '' or m.priority ~= 0
    end
  end
  redis.call('HSET', CONF, 'from:' .. from, batch .. ' ' .. table.concat(reply, ' ', 2))
  if windowed and not window then
    window, conf.window = tonumber(default_window), default_window
    redis.call('HSET', CONF, 'window', window)
  end
  if conf.class == 'plain' and size.meta + size.left > 0 then
    redis.call('HSET', CONF, 'class', 'general')
  end
elseif batch == tonumber(last_batch) then
  for id in string.gmatch(last_refused, '%S+') do
    reply[#reply + 1] = id
  end
end
arrivals = math.max(arrivals, tonumber(ARGV[7]))

-- The rate is the topic's: what the retiring shards delivered leaves less for this shard.
for name, tat in string.gmatch(tats, '(%S+) (%S+)') do
  local here = redis.call('HGET', STATS, 'tat:' .. name)
  if by_name[name] and tonumber(tat) > (tonumber(here) or 0) then
    redis.call('HSET', STATS, 'tat:' .. name, tat)
  end
end

-- Nothing due at or after the lowest watermark moves here: an earlier message may still come from that shard.
if known[2] then
  -- A call that was delayed on its way must not undo what a later one reported.
  local before = tonumber(redis.call('HGET', CONF, 'watermark:' .. from)) or 0
  redis.call('HSET', CONF, 'watermark:' .. from, math.max(before, watermark_there < 0 and FOREVER or watermark_there))
  local fields = {}
  for shard = tonumber(oldest), tonumber(youngest) do
    fields[#fields + 1] = 'watermark:' .. shard
  end
  local watermark = FOREVER
  for i in ipairs(fields) do
    watermark = math.min(watermark, tonumber(redis.call('HGET', CONF, fields[i])) or 0)
  end
  if watermark == FOREVER then
    redis.call('HDEL', CONF, 'watermark')
  else
    redis.call('HSET', CONF, 'watermark', watermark)
  end
  if watermark > (tonumber(conf.watermark) or math.huge) then
    look_at(now)
  end
end
finish()
return reply
