#!lua
-- send: stores messages of a topic that uses features; merges and replaces.
--
-- ARGV[3] ready    count   the shard's max_ready while a message has a priority or a merge key, if the topic sets none
-- ARGV[4] dedup    ms      the dedup window, for which ended ids are remembered
-- ARGV[5] again    pairs   of the items to send although a message of their id was cancelled: index (from 1), colon, score
--                          of the tombstone to ignore; separated by spaces
-- ARGV[6] own      flag    1 if a caller chose any of the ids
-- ARGV[7] items    eights  id, due (delay in ms, or negative instant), record, ordering key, merge key, priority,
--                          ttl (ms after due, negative instant, or 0), id to replace; at most 100, ids distinct
--
-- Returns 'sent', now, then three values for each item: its outcome, a due time, an id:
--   waiting, its due time, its id;
--   merged, the due time (-1 if past waiting) and the id of the message that it was merged into, now or before;
--   duplicate, the due time of the message there (-1 if past waiting, -2 minus its tombstone's code if ended), that id;
--   full, 0, its id;
--   closed, 0, its id (the shard is retiring, or its topic is being removed, and it does not know the message);
--   replace_conflict, a tombstone's code or -1, and 'in_flight', 'garbage' or 'unknown' instead of an id;
--   or 'class' (the topic is plain, and no item uses a feature).
-- Cost O(n log N); an item that merges or replaces also costs as much as a cancel.
-- Safe to repeat: an id that is stored, or ended within `dedup`, is a duplicate, even if cancelled since the first call.
local default_window, dedup, again, first = ARGV[3], tonumber(ARGV[4]), scores_by_index(ARGV[5]), 7
local n = (#ARGV - first + 1) / 8

local ids, featured, windowed, moves = {}, false, false, false
for i = 1, n do
  local at = first + (i - 1) * 8
  ids[i] = ARGV[at]
  local ranked = ARGV[at + 4] ~= '' or ARGV[at + 5] ~= '0'
  windowed = windowed or ranked
  moves = moves or ARGV[at + 4] ~= '' or ARGV[at + 7] ~= ''
  featured = featured or ranked or ARGV[at + 3] ~= '' or ARGV[at + 6] ~= '0' or ARGV[at + 7] ~= ''
end
if conf.class == 'plain' and #groups == 1 and not featured then
  return {'class'}
end
if moves then
  read_all_sizes()
end
local stored = are_stored(PAYLOAD, ids, ARGV[6] == '1')
local tombs = size.tomb > 0 and redis.call('ZMSCORE', TOMB, unpack(ids)) or {}
local max_messages, max_bytes = tonumber(conf.max_messages), tonumber(conf.max_bytes)
local bytes = max_bytes and tonumber(redis.call('HGET', STATS, 'bytes')) or 0
local oldest, outlived = oldest_tombstone(now, dedup), {}
-- `max_bytes` bounds the stored records plus this much for each tombstone, twice for that of a merged id.
local TOMB_BYTES = 128
local merged = (moves or size.tomb > 0) and redis.call('HLEN', INTO) or 0
local function has_room(more)
  return not max_bytes or bytes + (size.tomb + merged) * TOMB_BYTES + more <= max_bytes
end
local function recount_tombs()
  if max_bytes then
    size.tomb, merged = redis.call('ZCARD', TOMB), redis.call('HLEN', INTO)
  end
end

local function open_window()
  if windowed and not window then
    window, conf.window = tonumber(default_window), default_window
    redis.call('HSET', CONF, 'window', window)
  end
end
-- Called for a message that uses a feature and is stored: one that is refused leaves its shard plain.
local function become_general()
  if conf.class == 'plain' then
    conf.class = 'general'
    redis.call('HSET', CONF, 'class', 'general')
    open_window()
  end
end
if #groups ~= 1 then
  -- Only with one group can a shard be plain; this one was damaged.
  become_general()
end
if conf.class ~= 'plain' then
  open_window()
end

local reply = {'sent', now}
local function answer(outcome, due, id)
  reply[#reply + 1] = outcome
  reply[#reply + 1] = due
  reply[#reply + 1] = id
end

-- Writes the new messages together. Must run before anything looks for one of them.
local records, scores = {}, {}
local function write()
  if #records > 0 then
    redis.call('ZADD', WAITING, unpack(scores))
    redis.call('HSET', PAYLOAD, unpack(records))
    records, scores = {}, {}
  end
end

-- Puts the payload and the options of a later send into a message of which no group has a stream entry.
local function replace_with(m, where, states, item)
  local due = item.due
  if m.cap > 0 then
    due = math.min(due, math.max(m.cap, now))
  end
  if where == 'waiting' then
    redis.call('ZREM', WAITING, member(m))
    states = {}
  end
  for _, at in ipairs(states) do
    take_out(m, at)
  end
  if m.bytes > 0 then
    count('bytes', #item.record - m.bytes)
    bytes = bytes + #item.record - m.bytes
    m.bytes = #item.record
  end
  m.priority, m.ttl, m.is_survivor = item.priority, item.ttl, true
  redis.call('HSET', PAYLOAD, m.id, item.record)
  wait_again(m, due, states)
  return due
end

-- Merges an item into the message of its merge key, if there is one and no group has started to deliver it. Returns true
-- if it has answered for the item.
local function merge(item, scope)
  local id = redis.call('HGET', MERGE, scope)
  if not id then
    return false
  end
  write()
  local m, where, states = find(id)
  if where ~= 'waiting' and where ~= 'held' then
    return false
  end
  local due, more = tonumber(m.waiting) or m.due, 0
  -- A lapsed message is stored only until its turn comes, and would take the item with it.
  if m.lapse <= now or max_lateness and due + max_lateness <= now then
    return false
  elseif conf.merge == 'reject' then
    count('duplicates')
    answer('duplicate', m.waiting or -1, id)
    return true
  elseif conf.merge ~= 'first' then
    more = #item.record - m.bytes
  end
  if item.replaces == '' and not has_room(more + 2 * TOMB_BYTES) then
    answer('full', 0, item.id)
    return true
  end
  if conf.merge ~= 'first' then
    due = replace_with(m, where, states, item)
  end
  count('accepted')
  count('merged')
  entomb(TOMB, item.id, now, 2)
  redis.call('HSET', INTO, item.id, id)
  recount_tombs()
  answer('merged', due, id)
  return true
end

local count_stored = size.payload
local function store(item, scope)
  local m = read_meta(item.id)
  m.due = item.due
  if item.key ~= '' or scope or item.priority ~= 0 or item.ttl ~= 0 or max_bytes then
    m.seq, m.priority, m.ttl, m.key, m.merge = arrive(), item.priority, item.ttl, item.key, item.merge
    m.lapse = metas.lapse(m.due, m.ttl)
    m.bytes = max_bytes and #item.record or 0
    if scope and not conf.merge and conf.max_wait then
      m.cap = now + conf.max_wait
    end
    write_meta(m)
    index(m)
    if scope then
      redis.call('HSET', MERGE, scope, item.id)
    end
    if m.bytes > 0 then
      count('bytes', m.bytes)
      bytes = bytes + m.bytes
    end
    if is_ranked(m) then
      count('ranked')
    end
  end
  records[#records + 1], records[#records + 2] = item.id, item.record
  scores[#scores + 1], scores[#scores + 2] = whole(item.due), member(m)
  count_stored = count_stored + 1
  count('accepted')
  look_at(item.due)
  answer('waiting', item.due, item.id)
end

-- Does what `store` does for each message, but with one command for each kind of change. Returns false, with nothing changed,
-- if the topic has a limit, or if a message is not new, replaces another or is merged.
local function store_all()
  if conf.closed or conf.removed or max_messages or max_bytes then
    return false
  end
  local scopes, scoped, is_scope = {}, {}, {}
  for i = 1, n do
    local at = first + (i - 1) * 8
    if stored[i] or tombs[i] or ARGV[at + 7] ~= '' then
      return false
    elseif ARGV[at + 4] ~= '' then
      local scope = ARGV[at + 3] .. '\0' .. ARGV[at + 4]
      if is_scope[scope] then
        return false
      end
      is_scope[scope] = true
      scopes[#scopes + 1], scoped[#scoped + 1], scoped[#scoped + 2] = scope, scope, ids[i]
    end
  end
  if #scopes > 0 then
    for _, id in ipairs(redis.call('HMGET', MERGE, unpack(scopes))) do
      if id then
        return false
      end
    end
  end
  local default_ttl, packed, indexed = tonumber(conf.ttl) or 0, {}, {}
  local cap = not conf.merge and conf.max_wait and now + conf.max_wait or 0
  for i = 1, n do
    local id, at, waiting_as = ids[i], first + (i - 1) * 8, ids[i]
    local due, key, merge_key, priority, ttl =
      due_at(ARGV[at + 1], now), ARGV[at + 3], ARGV[at + 4], tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
    if ttl == 0 then
      ttl = default_ttl
    end
    if key ~= '' or merge_key ~= '' or priority ~= 0 or ttl ~= 0 then
      local seq = arrive()
      waiting_as = string.format('~%012d', seq) .. id
      packed[#packed + 1], packed[#packed + 2] =
        id, metas.pack(seq, due, priority, ttl, merge_key ~= '' and cap or 0, key, merge_key)
      if key ~= '' and conf.key_index then
        indexed[#indexed + 1], indexed[#indexed + 2] = '0', key .. '\0' .. id
      end
      if priority ~= 0 or merge_key ~= '' then
        count('ranked')
      end
    end
    local score = whole(due)
    records[2 * i - 1], records[2 * i], scores[2 * i - 1], scores[2 * i] = id, ARGV[at + 2], score, waiting_as
    reply[3 * i], reply[3 * i + 1], reply[3 * i + 2] = 'waiting', due, id
    look_at(due)
  end
  count('accepted', n)
  if #packed > 0 then
    become_general()
    size.meta = size.meta + hset_all(META, size.meta, packed)
  end
  if #indexed > 0 then
    redis.call('ZADD', BYKEY, unpack(indexed))
  end
  if #scoped > 0 then
    hset_all(MERGE, size.merge, scoped)
  end
  return true
end

local function store_each()
  for i = 1, n do
    local at = first + (i - 1) * 8
    local item = {
      id = ids[i], due = due_at(ARGV[at + 1], now), record = ARGV[at + 2], key = ARGV[at + 3], merge = ARGV[at + 4],
      priority = tonumber(ARGV[at + 5]), ttl = tonumber(ARGV[at + 6]), replaces = ARGV[at + 7],
    }
    if item.ttl == 0 then
      item.ttl = tonumber(conf.ttl) or 0
    end
    local scope = item.merge ~= '' and item.key .. '\0' .. item.merge
    -- The end of the message with this id, even if an earlier item of this call ended it; -1 if it did not end.
    local code = -1
    if is_gone[item.id] then
      code = end_of(TOMB, item.id)
    elseif tombs[i] and tonumber(tombs[i]) >= oldest then
      code = tonumber(tombs[i]) % 4
      if code == 1 and tonumber(tombs[i]) == again[i] then
        code = -1
      end
    end
    if stored[i] and not is_gone[item.id] then
      count('duplicates')
      write()
      answer('duplicate', redis.call('ZSCORE', WAITING, member(message(item.id))) or -1, item.id)
    elseif code >= 0 or is_gone[item.id] then
      count('duplicates')
      local survivor = code == 2 and redis.call('HGET', INTO, item.id)
      if survivor then
        write()
        answer('merged', redis.call('ZSCORE', WAITING, member(message(survivor))) or -1, survivor)
      else
        answer('duplicate', -2 - code, item.id)
      end
    else
      -- A replaced message makes room, unless a group has it in garbage.
      local replaced, blocked, room = nil, nil, 0
      if item.replaces ~= '' then
        write()
        local m, where, _, in_garbage = find(item.replaces)
        if where == 'waiting' or where == 'held' then
          replaced, room = m, in_garbage and in_garbage > 0 and 0 or 1
        else
          blocked = where
        end
      end
      local is_new = (conf.closed or conf.removed) and not replaced
      if is_new and (not blocked or blocked == 'unknown' and end_of(TOMB, item.replaces) < 0) then
        if blocked or not scope or not merge(item, scope) then
          answer('closed', 0, item.id)
        end
      elseif blocked then
        answer('replace_conflict', end_of(TOMB, item.replaces), blocked)
      elseif scope and (not replaced or conf.merge == 'reject' and redis.call('HGET', MERGE, scope) ~= item.replaces)
        and merge(item, scope) then
        -- `merge` has answered.
      elseif max_messages and count_stored - room >= max_messages
        or not has_room(#item.record + (replaced and TOMB_BYTES - room * replaced.bytes or 0)) then
        answer('full', 0, item.id)
      else
        if item.key ~= '' or scope or item.priority ~= 0 or item.ttl ~= 0 then
          become_general()
        end
        if replaced then
          cancel(item.replaces)
          count_stored = count_stored - room
          bytes = bytes - room * replaced.bytes
          recount_tombs()
        end
        if not (replaced and scope and merge(item, scope)) then
          store(item, scope)
          if tombs[i] then
            outlived[#outlived + 1] = item.id
          end
        end
      end
    end
  end
end
if not store_all() then
  store_each()
end
write()
redis.call('HSET', STATS, 'last_time', now)
finish()
local renewed = {}
for _, id in ipairs(outlived) do
  if not is_gone[id] then
    renewed[#renewed + 1] = id
  end
end
if #renewed > 0 then
  redis.call('ZREM', TOMB, unpack(renewed))
  redis.call('HDEL', INTO, unpack(renewed))
end
return reply
