-- Shared by the general scripts: the shard, a message, and its copies in the groups. `transitions.lua` changes them.
--
-- KEYS[1] conf     hash    rules of the topic, groups, pause flags
-- KEYS[2] stats    hash    counters, last_time, alarm, seq, tat:<group>
-- KEYS[3] waiting  zset    member -> due ms
-- KEYS[4] payload  hash    id -> record
-- KEYS[5] meta     hash    id -> what read_meta reads
-- KEYS[6] merge    hash    ordering key NUL merge key -> id that can be merged into
-- KEYS[7] left     hash    id -> number of groups that still owe it
-- KEYS[8] tomb     zset    ended ids
-- KEYS[9] wake     channel the mover listens on
-- KEYS[10] bykey   zset    ordering key NUL id -> 0, of messages sent while `key_index` was set
-- KEYS[11] into    hash    merged id -> the message that it was merged into, as long as it has a tombstone
-- Then, for each group: ready retry attempts backlog parked holder garbage garbage_info garbage_hook
--
-- Because `wake` is a channel and never exists as a key, Redis rejects each of these scripts as a whole (TRYAGAIN) while the
-- shard's slot moves in a cluster. So a script may access a key again after emptying it.
--
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] groups   names   all groups of the topic, separated by spaces, as `conf` has them
--
-- Each may return 'undeclared' (no such topic) or 'changed' (the topic has other groups: read its settings again).
local CONF, STATS, WAITING, PAYLOAD, META, MERGE, LEFT, TOMB, WAKE, BYKEY, INTO =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]

local groups, conf = {}, {}
local fields = {
  'class', 'groups', 'paused', 'merge', 'max_wait', 'on_garbage', 'max_ready', 'window', 'max_messages',
  'max_bytes', 'ttl', 'on_expired', 'interval', 'burst', 'max_lateness', 'on_late', 'closed', 'watermark', 'key_index',
  'removed',
}
for name in string.gmatch(ARGV[2], '%S+') do
  local k = 11 + 9 * #groups
  groups[#groups + 1] = {
    name = name, ready = KEYS[k + 1], retry = KEYS[k + 2], attempts = KEYS[k + 3], backlog = KEYS[k + 4],
    parked = KEYS[k + 5], holder = KEYS[k + 6], garbage = KEYS[k + 7], garbage_info = KEYS[k + 8], garbage_hook = KEYS[k + 9],
  }
  fields[#fields + 1] = 'paused:' .. name
  fields[#fields + 1] = 'retiring:' .. name
  fields[#fields + 1] = 'garbage_hook:' .. name
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
local now, us = clock(ARGV[1], stats[1])
local arrivals = tonumber(stats[3]) or 0
-- Gate limits: the most entries on a group's stream, ms between two deliveries, burst size.
local window = tonumber(conf.max_ready or conf.window)
local interval, burst = tonumber(conf.interval), tonumber(conf.burst)
local max_lateness = conf.on_late and tonumber(conf.max_lateness)
-- While set, nothing goes on any stream of the shard: the topic is paused, or the shard is retiring.
local is_shut = conf.paused or conf.closed

-- Reads sizes before the first write: nothing is rolled back, so a key of a wrong type must fail here. In addition, what
-- is empty need not be read later.
local size = {
  payload = redis.call('HLEN', PAYLOAD), meta = redis.call('HLEN', META), merge = redis.call('HLEN', MERGE),
  left = redis.call('HLEN', LEFT), tomb = redis.call('ZCARD', TOMB), waiting = redis.call('ZCARD', WAITING),
  bykey = redis.call('ZCARD', BYKEY),
}
local function read_sizes(g)
  g.stream, g.retries, g.tried = redis.call('XLEN', g.ready), redis.call('ZCARD', g.retry), redis.call('HLEN', g.attempts)
  g.gated, g.parked_count, g.held = redis.call('ZCARD', g.backlog), redis.call('ZCARD', g.parked), redis.call('HLEN', g.holder)
  g.garbage_count = redis.call('ZCARD', g.garbage)
  redis.call('HLEN', g.garbage_info)
  redis.call('ZCARD', g.garbage_hook)
  g.untried = {}
  return g
end
local function read_all_sizes()
  for _, g in ipairs(groups) do
    read_sizes(g)
  end
end

-- Counter changes of this call, and the earliest time at which the mover has something to do.
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

-- Messages. A `meta` value is MessagePack, which is ten times faster to read than text: arrival, due, priority, ttl, cap,
-- bytes, ordering key, merge key. `ttl` counts from the due time, or is the negative of an instant. 0 and '' mean none.
-- Two optional values follow. The ninth lists the groups in which the message no longer expires, each between two spaces.
-- The tenth is 1 if a later send has replaced the content: the record is not the one that the message was sent with, so
-- its end is remembered even if Lisa made the id. A message without meta uses no feature.
local metas, messages = {}, {}
function metas.lapse(due, ttl)
  return ttl == 0 and math.huge or ttl > 0 and due + ttl or -ttl
end
function metas.pack(seq, due, priority, ttl, cap, key, merge, bytes, exempt, is_survivor)
  local packed = cmsgpack.pack(seq, due, priority, ttl, cap, bytes or 0, key, merge)
  if is_survivor then
    return packed .. cmsgpack.pack(exempt, 1)
  end
  return exempt and exempt ~= '' and packed .. cmsgpack.pack(exempt) or packed
end
-- Returns the values of a meta, those first that most callers need.
function metas.unpack(packed)
  local seq, due, priority, ttl, cap, bytes, key, merge, exempt, is_survivor = cmsgpack.unpack(packed)
  return due, priority, key, merge, ttl, exempt, bytes, is_survivor == 1, seq, cap
end
local function read_meta(id, packed)
  local m
  if packed then
    local due, priority, key, merge, ttl, exempt, bytes, is_survivor, seq, cap = metas.unpack(packed)
    m = {
      id = id, has_meta = true, seq = seq, due = due, priority = priority, ttl = ttl, cap = cap, bytes = bytes, key = key,
      merge = merge, exempt = exempt or '', lapse = metas.lapse(due, ttl), is_survivor = is_survivor,
    }
  else
    m = {
      id = id, seq = 0, due = 0, priority = 0, ttl = 0, cap = 0, bytes = 0, key = '', merge = '', exempt = '',
      lapse = math.huge,
    }
  end
  messages[id] = m
  return m
end
local function message(id)
  return messages[id] or read_meta(id, size.meta > 0 and redis.call('HGET', META, id))
end
local function prefetch(ids)
  if size.meta > 0 and #ids > 0 then
    local packed = redis.call('HMGET', META, unpack(ids))
    for i, id in ipairs(ids) do
      if not messages[id] then
        read_meta(id, packed[i])
      end
    end
  end
end
-- Returns whether a message's position in the backlog depends on more than its due time, or later sends may change it.
local function is_ranked(m)
  return m.priority ~= 0 or m.merge ~= ''
end
local function write_meta(m)
  m.has_meta = true
  size.meta = size.meta + 1
  local packed = metas.pack(m.seq, m.due, m.priority, m.ttl, m.cap, m.key, m.merge, m.bytes, m.exempt, m.is_survivor)
  redis.call('HSET', META, m.id, packed)
end
-- Returns the time from which a message is not worth delivering to a group.
local function lapse_in(g, m)
  local is_exempt = m.exempt ~= '' and string.find(m.exempt, ' ' .. g.name .. ' ', 1, true)
  return is_exempt and math.huge or m.lapse
end

-- Zset members: of waiting and retry; of a backlog, in delivery order; of parked, in the order of each key.
local function member(m)
  return m.seq > 0 and string.format('~%012d', m.seq) .. m.id or m.id
end
local function id_of(text)
  return string.sub(text, 1, 1) == '~' and string.sub(text, 14) or text
end
local function backlog_member(m)
  return string.format('%014d%012d', m.due, m.seq) .. m.id
end
local function parked_member(m)
  return m.key .. '\0' .. backlog_member(m)
end

-- Returns how a message that is not stored ended: its tombstone's code or -1, and the id that it was merged into or ''.
local function ending(id)
  local code = end_of(TOMB, id)
  return code, code == 2 and redis.call('HGET', INTO, id) or ''
end

-- Ends merging into a message: the next send with its merge key starts another one.
local function unmerge(m)
  if m.merge ~= '' then
    local scope = m.key .. '\0' .. m.merge
    if redis.call('HGET', MERGE, scope) == m.id then
      redis.call('HDEL', MERGE, scope)
    end
  end
end

-- Ends a message. `flush` removes its data. A code leaves a tombstone.
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

-- Returns how many groups still owe a message that became due: 1 if `left` has no entry, 0 if no group owes it any more.
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

-- Forgets a message's attempts at the end of the call.
local function forget_attempts(g, m)
  if g.tried > 0 then
    g.untried[#g.untried + 1] = m.id
  end
end

-- Ends a copy. The last one ends the message.
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
