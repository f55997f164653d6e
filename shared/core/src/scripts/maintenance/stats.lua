#!lua flags=no-writes
-- stats: counts the messages in each state and reads the counters, at one instant.
--
-- Returns 'stats', now, 1 if paused, the class, stored messages, waiting, tombstones, next due time (-1 if none);
--   then for each group twelve: stream length, in flight, backlog, parked, retry, garbage, 1 if paused, drain or drop if
--   retiring (else ''), 1 if it belongs to one instance, consumers that reported within 30 s, due time of the oldest
--   message that is due and not in flight (-1 if none), due time of the first ready message (-1 if none);
--   then the counters as name and value.
-- Cost O(groups + consumers): 11 commands for each group, and up to 14 more for a group with due messages.
-- Safe to repeat.

-- A consumer reports to its group every 10 s. One that has not reported for this long is gone, in ms.
local SEEN = 30000
-- The suffix of the names of consumers that only hold deliveries with a lease of their own: see broker/pull.rs.
local HOLDS = '-leases'
-- How many ordering keys to look at for the oldest parked message.
local KEYS_LOOKED_AT = 8

-- Returns how many deliveries consumers hold, and how many consumers are alive. If the stream lost its group, nothing is in
-- flight; the next read creates the group again.
local function readers(g)
  local rows = redis.pcall('XINFO', 'CONSUMERS', g.ready, g.name)
  local held, alive = 0, 0
  for _, row in ipairs(rows.err and {} or rows) do
    local consumer = by_names(row)
    held = held + consumer.pending
    local reads = string.sub(consumer.name, -#HOLDS) ~= HOLDS
    alive = alive + (reads and consumer.idle <= SEEN and 1 or 0)
  end
  return held, alive
end

-- Returns the due time of the first unread entry.
local function first_ready(g)
  local delivered = last_delivered(g)
  local entry = redis.call('XRANGE', g.ready, delivered and '(' .. delivered or '-', '+', 'COUNT', 1)[1]
  return entry and tonumber(by_names(entry[2]).d) or math.huge
end

-- Returns the oldest due time in the backlog, looking at the most and the least urgent priority.
local function first_held_back(g)
  local head = redis.call('ZRANGE', g.backlog, 0, 0)[1]
  local last = redis.call('ZRANGE', g.backlog, -1, -1, 'WITHSCORES')[2]
  local low = redis.call('ZRANGE', g.backlog, last, last, 'BYSCORE', 'LIMIT', 0, 1)[1]
  return math.min(tonumber(string.sub(head, 1, 14)), tonumber(string.sub(low, 1, 14)))
end

-- Returns the oldest due time of parked messages, looking at a few ordering keys.
local function first_parked(g)
  local oldest, from = math.huge, '-'
  for _ = 1, KEYS_LOOKED_AT do
    local head = redis.call('ZRANGE', g.parked, from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    local nul = head and string.find(head, '\0', 1, true)
    if not nul then
      break
    end
    oldest = math.min(oldest, tonumber(string.sub(head, nul + 1, nul + 14)) or oldest)
    from = '[' .. string.sub(head, 1, nul - 1) .. '\1'
  end
  return oldest
end

local function whole_or_none(time)
  return time < math.huge and whole(time) or -1
end

local next = redis.call('ZRANGE', WAITING, 0, 0, 'WITHSCORES')
local reply = {'stats', now, conf.paused and 1 or 0, conf.class, size.payload, size.waiting, size.tomb, next[2] or -1}
read_all_sizes()
for _, g in ipairs(groups) do
  local held, alive = readers(g)
  local ready = g.stream > held and first_ready(g) or math.huge
  local retry = g.retries > 0 and redis.call('ZRANGE', g.retry, 0, 0, 'WITHSCORES')[2]
  local oldest = math.min(
    ready, g.gated > 0 and first_held_back(g) or math.huge, g.parked_count > 0 and first_parked(g) or math.huge,
    tonumber(retry or math.huge), not conf['retiring:' .. g.name] and tonumber(next[2]) or math.huge
  )
  for _, value in ipairs({
    g.stream, held, g.gated, g.parked_count, g.retries, g.garbage_count, conf['paused:' .. g.name] and 1 or 0,
    conf['retiring:' .. g.name] or '', redis.call('HEXISTS', CONF, 'instance:' .. g.name), alive,
    whole_or_none(oldest <= now and oldest or math.huge), whole_or_none(ready),
  }) do
    reply[#reply + 1] = value
  end
end
for _, field in ipairs(redis.call('HGETALL', STATS)) do
  reply[#reply + 1] = field
end
return reply
