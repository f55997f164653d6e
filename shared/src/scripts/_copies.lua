-- What the general scripts share: a message, its copies in the groups, and the way of a copy to the stream.
--
-- KEYS[1] conf     hash    rules of the topic, groups, pause flags
-- KEYS[2] stats    hash    counters, last_time, alarm, seq, tat:<group>
-- KEYS[3] waiting  zset    member -> due ms
-- KEYS[4] payload  hash    id -> record
-- KEYS[5] meta     hash    id -> what read_meta reads
-- KEYS[6] merge    hash    ordering key NUL merge key -> id that can be merged into
-- KEYS[7] left     hash    id -> groups that still owe it
-- KEYS[8] tomb     zset    ended ids
-- KEYS[9] wake     channel the mover listens on
-- KEYS[10] bykey   zset, lex  ordering key NUL id, of what was sent with the setting key_index
-- KEYS[11] into    hash    merged id -> the message that it was merged into, as long as it has a tombstone
-- then for each group: ready retry attempts backlog lane holder garbage dead notices
--
-- As `wake` is no key, Redis refuses each of these scripts as a whole while the slot of the shard moves in a cluster
-- (TRYAGAIN), so that they may touch a key again that they have emptied.
--
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] groups   names   all groups of the topic, separated by spaces, as `conf` has them
--
-- Each of them may answer 'undeclared' (no such topic) or 'changed' (other groups: read the settings again).
local CONF, STATS, WAITING, PAYLOAD, META, MERGE, LEFT, TOMB, WAKE, BYKEY, INTO =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]

local groups, conf = {}, {}
local fields = {
  'class', 'groups', 'paused', 'merge', 'max_wait', 'on_garbage', 'max_ready', 'window', 'max_messages',
  'max_bytes', 'ttl', 'on_expired', 'interval', 'burst', 'max_lateness', 'on_late', 'closed', 'horizon', 'key_index',
}
for name in string.gmatch(ARGV[2], '%S+') do
  local k = 11 + 9 * #groups
  groups[#groups + 1] = {
    name = name, ready = KEYS[k + 1], retry = KEYS[k + 2], attempts = KEYS[k + 3], backlog = KEYS[k + 4],
    lane = KEYS[k + 5], holder = KEYS[k + 6], garbage = KEYS[k + 7], dead = KEYS[k + 8], notices = KEYS[k + 9],
  }
  fields[#fields + 1] = 'paused:' .. name
  fields[#fields + 1] = 'retiring:' .. name
  fields[#fields + 1] = 'notices:' .. name
end
local values = redis.call('HMGET', CONF, unpack(fields))
for i, field in ipairs(fields) do
  conf[field] = values[i]
end
if not conf.class then
  return {'undeclared'}
elseif conf.groups ~= ARGV[2] then
  return {'changed'}
end

local stats = redis.call('HMGET', STATS, 'last_time', 'alarm', 'seq', 'ranked')
local now = clock(ARGV[1], stats[1])
local arrivals = tonumber(stats[3]) or 0
-- Of the gates: the most entries of a group's stream, the ms between two messages, how many may come at once.
local window = tonumber(conf.max_ready or conf.window)
local interval, burst = tonumber(conf.interval), tonumber(conf.burst)
local max_lateness = conf.on_late and tonumber(conf.max_lateness)
-- Nothing goes on any stream of the shard: the topic is paused, or another shard takes over.
local is_shut = conf.paused or conf.closed

-- A wrong type must show before the first write, as nothing is rolled back; and what is empty need not be asked.
local size = {
  payload = redis.call('HLEN', PAYLOAD), meta = redis.call('HLEN', META), merge = redis.call('HLEN', MERGE),
  left = redis.call('HLEN', LEFT), tomb = redis.call('ZCARD', TOMB), waiting = redis.call('ZCARD', WAITING),
  bykey = redis.call('ZCARD', BYKEY),
}
local function survey(g)
  g.stream, g.retries, g.tried = redis.call('XLEN', g.ready), redis.call('ZCARD', g.retry), redis.call('HLEN', g.attempts)
  g.gated, g.parked, g.held = redis.call('ZCARD', g.backlog), redis.call('ZCARD', g.lane), redis.call('HLEN', g.holder)
  g.buried = redis.call('ZCARD', g.garbage)
  redis.call('HLEN', g.dead)
  redis.call('ZCARD', g.notices)
  g.untried = {}
  return g
end
local function survey_all()
  for _, g in ipairs(groups) do
    survey(g)
  end
end

-- What the call changes in counters, and the earliest time at which the mover has something to do.
local counts, earliest = {}, math.huge
local function count(what, by)
  counts[what] = (counts[what] or 0) + (by or 1)
end
local function look_at(time)
  earliest = math.min(earliest, time)
end
local function arrive()
  arrivals = arrivals + 1
  return arrivals
end

-- Messages. `meta` has arrival, due, priority, ttl, cap, bytes, ordering key and merge key as MessagePack, which is ten
-- times faster to read than text; ttl counts from the due time, or is the negative of an instant; 0 and '' stand for
-- none. Behind them come, if there are any, the groups in which the message does not expire any more, each between two
-- blanks; and a 1 if a later send has taken the message's place: its record is not the one it was sent with, so its end is
-- remembered, whoever chose the id. A message without meta uses no feature.
local metas = {}
local function lapse_of(due, ttl)
  return ttl == 0 and math.huge or ttl > 0 and due + ttl or -ttl
end
local function read_meta(id, packed)
  local m
  if packed then
    local seq, due, priority, ttl, cap, bytes, key, merge, exempt, is_survivor = cmsgpack.unpack(packed)
    m = {
      id = id, has_meta = true, seq = seq, due = due, priority = priority, ttl = ttl, cap = cap, bytes = bytes, key = key,
      merge = merge, exempt = exempt or '', lapse = lapse_of(due, ttl), is_survivor = is_survivor == 1,
    }
  else
    m = {
      id = id, seq = 0, due = 0, priority = 0, ttl = 0, cap = 0, bytes = 0, key = '', merge = '', exempt = '',
      lapse = math.huge,
    }
  end
  metas[id] = m
  return m
end
local function message(id)
  return metas[id] or read_meta(id, size.meta > 0 and redis.call('HGET', META, id))
end
local function prefetch(ids)
  if size.meta > 0 and #ids > 0 then
    local packed = redis.call('HMGET', META, unpack(ids))
    for i, id in ipairs(ids) do
      if not metas[id] then
        read_meta(id, packed[i])
      end
    end
  end
end
-- Messages whose place in the backlog is more than their due time, and those that later sends may still change.
local function is_ranked(m)
  return m.priority ~= 0 or m.merge ~= ''
end
local function write_meta(m)
  m.has_meta = true
  size.meta = size.meta + 1
  local packed = cmsgpack.pack(m.seq, m.due, m.priority, m.ttl, m.cap, m.bytes, m.key, m.merge)
  if m.is_survivor then
    packed = packed .. cmsgpack.pack(m.exempt, 1)
  elseif m.exempt ~= '' then
    packed = packed .. cmsgpack.pack(m.exempt)
  end
  redis.call('HSET', META, m.id, packed)
end
-- From when on a message is not worth delivering to a group.
local function lapse_in(g, m)
  local is_exempt = m.exempt ~= '' and string.find(m.exempt, ' ' .. g.name .. ' ', 1, true)
  return is_exempt and math.huge or m.lapse
end

-- The index of ordering keys has each message from its send to its end.
local function index(m)
  if m.key ~= '' and conf.key_index then
    size.bykey = size.bykey + 1
    redis.call('ZADD', BYKEY, 0, m.key .. '\0' .. m.id)
  end
end

-- Members: of waiting and retry; of a backlog, whose order is the pick; of a lane, whose order is the key's.
local function member(m)
  return m.seq > 0 and string.format('~%012d', m.seq) .. m.id or m.id
end
local function id_of(text)
  return string.sub(text, 1, 1) == '~' and string.sub(text, 14) or text
end
local function backlog_member(m)
  return string.format('%014d%012d', m.due, m.seq) .. m.id
end
local function lane_member(m)
  return m.key .. '\0' .. backlog_member(m)
end

-- How a message ended that is not there: its tombstone's code or -1, and the id that it was merged into or ''.
local function ending(id)
  local code = end_of(TOMB, id)
  return code, code == 2 and redis.call('HGET', INTO, id) or ''
end

-- The end of a merge: from now on a message of this merge key is another one.
local function unmerge(m)
  if m.merge ~= '' then
    local scope = m.key .. '\0' .. m.merge
    if redis.call('HGET', MERGE, scope) == m.id then
      redis.call('HDEL', MERGE, scope)
    end
  end
end

-- The end of a message.
local gone, is_gone, gone_meta, gone_keys = {}, {}, {}, {}
local function forget(m, code)
  gone[#gone + 1] = m.id
  is_gone[m.id] = true
  if m.has_meta then
    gone_meta[#gone_meta + 1] = m.id
    if m.key ~= '' and size.bykey > 0 then
      gone_keys[#gone_keys + 1] = m.key .. '\0' .. m.id
    end
    unmerge(m)
    if m.bytes > 0 then
      count('bytes', -m.bytes)
    end
    if is_ranked(m) then
      count('ranked', -1)
    end
  end
  if code then
    entomb(TOMB, m.id, now, code)
  end
end

-- How many groups still owe a message that became due: 1 if `left` does not say, 0 if none does any more.
local left, left_changed = {}, {}
local function owed(id)
  left[id] = left[id] or size.left > 0 and tonumber(redis.call('HGET', LEFT, id)) or 1
  return left[id]
end
local function prefetch_owed(ids)
  if size.left > 0 and #ids > 0 then
    for i, n in ipairs(redis.call('HMGET', LEFT, unpack(ids))) do
      left[ids[i]] = tonumber(n) or 1
    end
  end
end
local function set_owed(id, n)
  left[id] = n
  left_changed[id] = n
end

-- A message's attempts are forgotten at the end of the call.
local function forget_attempts(g, m)
  if g.tried > 0 then
    g.untried[#g.untried + 1] = m.id
  end
end

-- The end of a copy; with the last one the message is gone.
local function end_copy(g, m, what, code)
  count(what .. ':' .. g.name)
  forget_attempts(g, m)
  local n = owed(m.id)
  if n > 1 then
    set_owed(m.id, n - 1)
  else
    if size.left > 0 then
      set_owed(m.id, 0)
    end
    forget(m, code)
  end
end

-- Keys: the holder of an ordering key is the one message of it that is not parked.
local function holder(g, key)
  return g.held > 0 and redis.call('HGET', g.holder, key)
end
local function hold(g, key, id)
  g.held = g.held + 1
  redis.call('HSET', g.holder, key, id)
end

-- Whether only the pump may put the group's messages on the stream.
local function is_gated(g)
  return is_shut or conf['paused:' .. g.name] or window or interval
end

local place
-- The only exit of a message from its ordering key: the next one follows.
local function release(g, m)
  if m.key == '' or holder(g, m.key) ~= m.id then
    return
  end
  local head = g.parked > 0
    and redis.call('ZRANGE', g.lane, '[' .. m.key .. '\0', '(' .. m.key .. '\1', 'BYLEX', 'LIMIT', 0, 1)[1]
  if not head then
    redis.call('HDEL', g.holder, m.key)
    return
  end
  redis.call('ZREM', g.lane, head)
  local next = message(string.sub(head, #m.key + 28))
  -- Should its meta be lost, the lane must go on all the same.
  next.key = m.key
  hold(g, m.key, next.id)
  place(g, next)
end

-- Gives a copy up; the holder of a key keeps it if the topic says so.
local function give_up(g, m, reason, attempts, error)
  bury(g.garbage, g.dead, conf['notices:' .. g.name] and g.notices, m.id, now, reason, attempts, error)
  forget_attempts(g, m)
  unmerge(m)
  if conf.on_garbage ~= 'block' then
    release(g, m)
  end
end

-- Ends a copy that is not worth delivering any more, as the topic says for 'on_expired' or 'on_late'. The text says what
-- is over; behind it comes the error of the last attempt. Gives the outcome.
local EXPIRED, LATE, NEVER_AGAIN = 'its ttl is over', 'it is too late', 'it expires before its next attempt'
local function lapse(g, m, attempts, rule, text, error)
  if conf[rule] == 'drop' then
    end_copy(g, m, 'expired', 3)
    unmerge(m)
    release(g, m)
    return 'expired'
  end
  count('lapsed:' .. g.name)
  give_up(g, m, 'expired', attempts, error == '' and text or text .. ': ' .. error)
  return 'garbage'
end
-- Ends a copy whose next attempt would come too late.
local function lapse_before(g, m, attempts, error)
  return lapse(g, m, attempts, 'on_expired', lapse_in(g, m) <= now and EXPIRED or NEVER_AGAIN, error)
end
-- Ends a copy whose time is over.
local function lapse_now(g, m, attempts, error)
  local is_expired = lapse_in(g, m) <= now
  return lapse(g, m, attempts, is_expired and 'on_expired' or 'on_late', is_expired and EXPIRED or LATE, error)
end

-- Puts a copy on its group's stream, or ends it if it has lapsed. Nothing else writes a stream.
local budget = 20
local function emit(g, m, due)
  budget = budget - 1
  local value = g.tried > 0 and redis.call('HGET', g.attempts, m.id)
  local attempts, crashes, error = read_attempts(value)
  due = due or (m.has_meta and not value and m.due or now)
  local lapses = lapse_in(g, m)
  if max_lateness then
    lapses = math.min(lapses, due + max_lateness)
  end
  if lapses <= now then
    lapse_now(g, m, attempts, error)
    return false
  end
  unmerge(m)
  g.stream = g.stream + 1
  if attempts == 0 and crashes == 0 and lapses == math.huge then
    redis.call('XADD', g.ready, '*', 'i', m.id, 'd', whole(due))
  else
    redis.call('XADD', g.ready, '*', write_fields(m.id, whole(due), attempts, crashes, lapses))
  end
  return true
end

-- Puts a copy that nothing but the gates can hold up where it belongs. A chain of lapsed heads is cut by the budget.
place = function(g, m, due)
  if is_gated(g) or budget <= 0 then
    if not m.has_meta then
      write_meta(m)
    end
    g.gated = g.gated + 1
    redis.call('ZADD', g.backlog, -m.priority, backlog_member(m))
  else
    emit(g, m, due)
  end
end

-- The only entrance of a copy that has become due: behind the holder of its key, or on its way.
local function offer(g, m, due)
  if m.key ~= '' then
    local id = holder(g, m.key)
    if id and id ~= m.id then
      g.parked = g.parked + 1
      redis.call('ZADD', g.lane, 0, lane_member(m))
      return
    elseif not id then
      hold(g, m.key, m.id)
    end
  end
  place(g, m, due)
end

-- The time up to which a group's rate is used up, and whether another is noted: one that a slower rate of before left, or a
-- clock that stepped back since, and that would hold the group up for longer than the rate of now can.
local function used_up_to(g)
  local tat, most = tonumber(redis.call('HGET', STATS, 'tat:' .. g.name)) or now, now + burst * interval
  return math.min(math.max(tat, now), most), tat > most
end

-- Lets through what the group's gates have room for: by priority, then due time, then arrival.
local function pump(g)
  if g.gated == 0 or is_shut or conf['paused:' .. g.name] then
    return
  end
  local spare, tat, is_other = math.huge, now, false
  if interval then
    tat, is_other = used_up_to(g)
    spare = math.floor((now + burst * interval - tat) / interval + 0.001)
  end
  local sent = 0
  while g.gated > 0 do
    local room = math.min(spare - sent, budget, window and window - g.stream or budget)
    if room <= 0 then
      break
    end
    local picks = redis.call('ZRANGE', g.backlog, 0, room - 1)
    if #picks == 0 then
      g.gated = 0
      break
    end
    redis.call('ZREMRANGEBYRANK', g.backlog, 0, #picks - 1)
    g.gated = g.gated - #picks
    local ids = {}
    for i, pick in ipairs(picks) do
      ids[i] = string.sub(pick, 27)
    end
    prefetch(ids)
    for _, id in ipairs(ids) do
      if emit(g, message(id)) then
        sent = sent + 1
      end
    end
  end
  if interval and (sent > 0 or is_other) then
    tat = tat + sent * interval
    redis.call('HSET', STATS, 'tat:' .. g.name, string.format('%.3f', tat))
  end
  if g.gated > 0 then
    if budget <= 0 then
      look_at(now)
    elseif interval and sent >= spare then
      look_at(math.ceil(tat - (burst - 1) * interval))
    end
  end
end

-- Where a message's copies are. Gives the message and 'waiting', 'unknown', 'in_flight' (a copy is on a stream),
-- 'garbage' (only there), or 'held' and a list of groups and places (backlog, lane, retry).
local function find(id)
  local m = message(id)
  m.waiting = redis.call('ZSCORE', WAITING, member(m))
  if m.waiting then
    return m, 'waiting'
  elseif is_gone[id] or redis.call('HEXISTS', PAYLOAD, id) == 0 then
    return m, 'unknown'
  end
  local places, buried = {}, 0
  for _, g in ipairs(groups) do
    if g.retries > 0 and redis.call('ZSCORE', g.retry, member(m)) then
      places[#places + 1] = {g = g, zset = 'retry', member = member(m)}
    elseif g.gated > 0 and redis.call('ZSCORE', g.backlog, backlog_member(m)) then
      places[#places + 1] = {g = g, zset = 'backlog', member = backlog_member(m)}
    elseif g.parked > 0 and redis.call('ZSCORE', g.lane, lane_member(m)) then
      places[#places + 1] = {g = g, zset = 'lane', member = lane_member(m)}
    elseif g.buried > 0 and redis.call('ZSCORE', g.garbage, id) then
      buried = buried + 1
    end
  end
  if #places + buried < owed(id) then
    return m, 'in_flight'
  elseif #places == 0 then
    return m, 'garbage'
  end
  return m, 'held', places, buried
end

-- Takes a copy out of its place; its key goes to the next.
local function take_out(m, at)
  redis.call('ZREM', at.g[at.zset], at.member)
  if at.zset == 'backlog' then
    at.g.gated = at.g.gated - 1
  end
  release(at.g, m)
end

-- Puts a message whose copies were all taken out back among the waiting, as one that arrives now.
local function wait_again(m, due, places)
  for _, at in ipairs(places) do
    count('moved:' .. at.g.name, -1)
  end
  if #places > 0 then
    count('moved', -1)
    if size.left > 0 then
      set_owed(m.id, 0)
    end
  end
  m.due, m.lapse = due, lapse_of(due, m.ttl)
  if m.has_meta then
    m.seq = arrive()
    write_meta(m)
  end
  redis.call('ZADD', WAITING, due, member(m))
  look_at(due)
end

-- Cancels a message if no copy is on a stream or all are in garbage. Gives the outcome and the record.
local function cancel(id)
  local m, where, places = find(id)
  if where ~= 'waiting' and where ~= 'held' then
    return where
  end
  local record = redis.call('HGET', PAYLOAD, id)
  if where == 'waiting' then
    redis.call('ZREM', WAITING, member(m))
    count('cancelled')
    forget(m)
  else
    for _, at in ipairs(places) do
      take_out(m, at)
      end_copy(at.g, m, 'cancelled')
    end
  end
  entomb(TOMB, id, now, 1)
  return 'cancelled', record or ''
end

-- Writes what was gathered. The window that ranked messages brought goes with the last of them; the mover then lets go
-- what is left behind it.
local function flush()
  if conf.window and (tonumber(stats[4]) or 0) + (counts.ranked or 0) <= 0 then
    redis.call('HDEL', CONF, 'window')
    look_at(now)
  end
  local owing, free = {}, {}
  for id, n in pairs(left_changed) do
    if n > 0 then
      owing[#owing + 1], owing[#owing + 2] = id, n
    else
      free[#free + 1] = id
    end
  end
  if #owing > 0 then
    redis.call('HSET', LEFT, unpack(owing))
  end
  if #free > 0 then
    redis.call('HDEL', LEFT, unpack(free))
  end
  if #gone > 0 then
    redis.call('HDEL', PAYLOAD, unpack(gone))
  end
  if #gone_meta > 0 then
    redis.call('HDEL', META, unpack(gone_meta))
  end
  if #gone_keys > 0 then
    redis.call('ZREM', BYKEY, unpack(gone_keys))
  end
  for _, g in ipairs(groups) do
    if g.untried and #g.untried > 0 then
      redis.call('HDEL', g.attempts, unpack(g.untried))
    end
  end
  for what, by in pairs(counts) do
    redis.call('HINCRBY', STATS, what, by)
  end
  if arrivals > (tonumber(stats[3]) or 0) then
    redis.call('HSET', STATS, 'seq', arrivals)
  end
end

-- The last thing that a script does before it answers: what has room goes on, what was gathered is written, and
-- the mover learns of what it has to do sooner than it thinks.
local function finish()
  for _, g in ipairs(groups) do
    if g.stream then
      pump(g)
    end
  end
  flush()
  if not conf.paused then
    wake(WAKE, STATS, stats[2], earliest)
  end
end
