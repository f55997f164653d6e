#!lua flags=allow-oom
-- hand_over: takes messages out of a shard that is being given up, for those that follow it. The first call closes it:
-- it delivers and stores nothing new any more.
--
-- ARGV[3] done     number  the batch that was taken in and can be forgotten, 0 for none
-- ARGV[4] refused  ids     those of that batch that come back, separated by spaces
-- ARGV[5] ids      ids     messages to take out next, at most 50, fewer if they are large; with none, what nobody has read
--                          comes off the streams
-- The last of KEYS is `leaving`, a hash: id -> bundle, and \1 with a merge key's field -> id, of one batch.
--
-- Returns 'leaving', the batch, the arrivals so far, the horizon, how far the rate of each group is used up (name and
--   time, separated by spaces), how many messages and entries are left, how many came off the streams, then three for
--   each message of the batch: id, the key that decides on its shard or '', bundle.
-- Cost O(n log N) for each group.
-- Safe to repeat: a batch is given until it is done.
local done, refused, first, LEAVING = tonumber(ARGV[3]), ARGV[4], 5, KEYS[#KEYS]
-- The most entries of a stream to look at, and the most bytes of a batch of several messages.
local MOST, MOST_BYTES = 50, 262144

survey_all()
redis.call('HLEN', LEAVING)
local batch = tonumber(redis.call('HGET', CONF, 'batch')) or 0
if not conf.closed then
  -- With `features`, clean leaves the class as it is.
  redis.call('HSET', CONF, 'closed', 1, 'class', 'full', 'features', 1)
  conf.closed, is_shut = '1', true
end

if done == batch and done > 0 then
  for id in string.gmatch(refused, '%S+') do
    local text = redis.call('HGET', LEAVING, id)
    if text then
      unwrap(id, text)
    end
  end
  redis.call('DEL', LEAVING)
end
local bundles = redis.call('HGETALL', LEAVING)
if #bundles == 0 then
  local sizes, bytes = {}, 0
  for i = first, #ARGV do
    sizes[i] = redis.call('HSTRLEN', PAYLOAD, ARGV[i])
  end
  for i = first, #ARGV do
    if bytes > 0 and bytes + sizes[i] > MOST_BYTES then
      break
    end
    local text, scope = wrap(ARGV[i])
    if text then
      bundles[#bundles + 1], bundles[#bundles + 2] = ARGV[i], text
      bytes = bytes + #text
    end
    if scope then
      bundles[#bundles + 1], bundles[#bundles + 2] = '\1' .. scope, ARGV[i]
    end
  end
  if #bundles > 0 then
    -- Should this shard go back in time, as by the failover of a replica that lags, no number may come twice: it would
    -- count as taken in.
    batch = math.max(batch + 1, now)
    redis.call('HSET', CONF, 'batch', batch)
    redis.call('HSET', LEAVING, unpack(bundles))
  end
end

-- An entry that nobody has read becomes a retry that is due since the entry's own due time.
local withdrawn = 0
if #bundles == 0 and #ARGV < first then
  for _, g in ipairs(groups) do
    local delivered = g.stream > 0 and last_delivered(g)
    local unread = delivered and redis.call('XRANGE', g.ready, '(' .. delivered, '+', 'COUNT', MOST) or {}
    for _, found in ipairs(unread) do
      local fields = read_entry(g.ready, found[1])
      redis.call('XDEL', g.ready, found[1])
      g.stream = g.stream - 1
      withdrawn = withdrawn + 1
      if fields.i and redis.call('HEXISTS', PAYLOAD, fields.i) == 1 then
        redis.call('ZADD', g.retry, fields.d or now, member(message(fields.i)))
      elseif fields.i then
        end_copy(g, message(fields.i), 'lost')
        release(g, message(fields.i))
      else
        count('lost:' .. g.name)
      end
    end
  end
end
flush()

-- The horizon is the time before which nothing comes from here any more, -1 if nothing ever does: 0 while a key has a
-- holder here, as no later message of it may go out anywhere.
local left, soonest, has_holders = redis.call('HLEN', PAYLOAD) + redis.call('HLEN', LEAVING), math.huge, false
local function look_into(zset)
  soonest = math.min(soonest, tonumber(redis.call('ZRANGE', zset, 0, 0, 'WITHSCORES')[2]) or math.huge)
end
look_into(WAITING)
local tats = {}
for _, g in ipairs(groups) do
  look_into(g.retry)
  left = left + g.stream
  has_holders = has_holders or redis.call('HLEN', g.holder) + redis.call('ZCARD', g.lane) + redis.call('ZCARD', g.backlog) > 0
  local tat = interval and redis.call('HGET', STATS, 'tat:' .. g.name)
  if tat then
    tats[#tats + 1] = g.name .. ' ' .. tat
  end
end
local horizon = has_holders and 0 or soonest < math.huge and soonest or -1
local reply = {'leaving', batch, arrivals, horizon, table.concat(tats, ' '), left, withdrawn}
for i = 1, #bundles, 2 do
  if string.sub(bundles[i], 1, 1) ~= '\1' then
    for _, value in ipairs({bundles[i], cmsgpack.unpack(bundles[i + 1])[1], bundles[i + 1]}) do
      reply[#reply + 1] = value
    end
  end
end
return reply
