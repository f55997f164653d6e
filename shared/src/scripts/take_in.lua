#!lua flags=allow-oom
-- take_in: puts messages that hand_over took out of another shard into this one.
--
-- ARGV[3] ready    count   max_ready of the shard once a message has a priority or a merge key, if there is none
-- ARGV[4] old      range   the shards that are being given up, first and last, separated by a space
-- ARGV[5] from     number  the one of the messages
-- ARGV[6] batch    number  their batch, 0 for none
-- ARGV[7] arrivals count   that shard's, so that what arrives here comes behind
-- ARGV[8] quiet    ms      nothing that is still there is due before; -1 if nothing ever is
-- ARGV[9] items    pairs   id, bundle; at most 50
--
-- Returns 'taken', then the ids that must go back, as other messages of the same ids are here.
-- Cost O(n log N) for each group.
-- Safe to repeat: a batch is taken in once, and answered the same again.
local default_window, from, batch = ARGV[3], ARGV[5], tonumber(ARGV[6])
local quiet_until, first = tonumber(ARGV[8]), 9
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
    window = tonumber(default_window)
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

-- This shard's messages are held up for what may still come before them from any of the others.
if known[2] then
  -- A call that was held up on its way must not take back what a later one said.
  local before = tonumber(redis.call('HGET', CONF, 'held:' .. from)) or 0
  redis.call('HSET', CONF, 'held:' .. from, math.max(before, quiet_until < 0 and FOREVER or quiet_until))
  local fields = {}
  for shard = tonumber(oldest), tonumber(youngest) do
    fields[#fields + 1] = 'held:' .. shard
  end
  local held = FOREVER
  for i in ipairs(fields) do
    held = math.min(held, tonumber(redis.call('HGET', CONF, fields[i])) or 0)
  end
  if held == FOREVER then
    redis.call('HDEL', CONF, 'held')
  else
    redis.call('HSET', CONF, 'held', held)
  end
  if held > (tonumber(conf.held) or math.huge) then
    look_at(now)
  end
end
finish()
return reply
