#!lua flags=allow-oom
-- take_in: puts messages that hand_over took out of another shard into this one.
--
-- ARGV[3] ready    count   max_ready of the shard while a message has a priority or a merge key, if there is none
-- ARGV[4] old      range   the shards that are being given up, first and last, separated by a space
-- ARGV[5] from     number  the one of the messages
-- ARGV[6] batch    number  their batch, 0 for none
-- ARGV[7] arrivals count   that shard's, so that what arrives here comes behind
-- ARGV[8] horizon  ms      nothing comes from there before it any more; -1 if nothing ever does
-- ARGV[9] tats     pairs   group, and the time up to which its rate is used up there; separated by spaces
-- ARGV[10] items   pairs   id, bundle; at most 50
--
-- Returns 'taken', then the ids that must go back, as other messages of the same ids are here.
-- Cost O(n log N) for each group.
-- Safe to repeat: a batch is taken in once, and answered the same again.
local default_window, from, batch = ARGV[3], ARGV[5], tonumber(ARGV[6])
local horizon_there, tats, first = tonumber(ARGV[8]), ARGV[9], 10
local oldest, youngest = string.match(ARGV[4], '^(%d+) (%d+)$')
local FOREVER = 9007199254740991

survey_all()
local known = redis.call('HMGET', CONF, 'from:' .. from, 'previous')
local last_batch, last_refused = string.match(known[1] or '0 ', '^(%d+) (.*)$')
local reply = {'taken'}
if known[2] == 'over' then
  -- Whoever says this did not notice that all had been taken in, by what another said.
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
    redis.call('HSET', CONF, 'class', 'full')
  end
elseif batch == tonumber(last_batch) then
  for id in string.gmatch(last_refused, '%S+') do
    reply[#reply + 1] = id
  end
end
arrivals = math.max(arrivals, tonumber(ARGV[7]))

-- The rate is the topic's: what the others let through leaves less to this shard.
for name, tat in string.gmatch(tats, '(%S+) (%S+)') do
  local here = redis.call('HGET', STATS, 'tat:' .. name)
  if by_name[name] and tonumber(tat) > (tonumber(here) or 0) then
    redis.call('HSET', STATS, 'tat:' .. name, tat)
  end
end

-- Nothing is moved here that is due at or after the least horizon: from that shard something may still come before it.
if known[2] then
  -- A call that was delayed on its way must not take back what a later one said.
  local before = tonumber(redis.call('HGET', CONF, 'horizon:' .. from)) or 0
  redis.call('HSET', CONF, 'horizon:' .. from, math.max(before, horizon_there < 0 and FOREVER or horizon_there))
  local fields = {}
  for shard = tonumber(oldest), tonumber(youngest) do
    fields[#fields + 1] = 'horizon:' .. shard
  end
  local horizon = FOREVER
  for i in ipairs(fields) do
    horizon = math.min(horizon, tonumber(redis.call('HGET', CONF, fields[i])) or 0)
  end
  if horizon == FOREVER then
    redis.call('HDEL', CONF, 'horizon')
  else
    redis.call('HSET', CONF, 'horizon', horizon)
  end
  if horizon > (tonumber(conf.horizon) or math.huge) then
    look_at(now)
  end
end
finish()
return reply
