-- Shared by the general scripts, after `copies.lua`: the only transitions of a copy, from its key and the gates of its group
-- to the stream or to garbage. `finish` writes the collected changes. From here on, a script is the body of a function that
-- captures variables of `prelude.lua` and `copies.lua`; Lua allows 60 (see `assemble` in `scripts.rs`).

-- Redis packs a small hash (up to 512 fields) or zset (up to 128 members) into one block, and searches that from its start.
-- An element longer than 64 bytes turns the block into a table, and it stays a table until the key is empty. So a batch that
-- goes into a small key adds a long element and removes it again. HSET looks for a long element before it adds the first one;
-- ZADD does not, so the long one comes first. Both functions return how many elements were added.
local LONG, FEW, SMALL = string.rep('\0', 65), 32, 512
local function hset_all(hash, size, items)
  local n = #items
  local turns = size <= SMALL and size + n / 2 > FEW
  if turns then
    items[n + 1], items[n + 2] = LONG, ''
  end
  redis.call('HSET', hash, unpack(items))
  if turns then
    redis.call('HDEL', hash, LONG)
  end
  return n / 2
end
local function zadd_all(zset, size, items)
  local n = #items
  local turns = size <= SMALL and size + n / 2 > FEW
  if turns then
    redis.call('ZADD', zset, '0', LONG)
  end
  redis.call('ZADD', zset, unpack(items))
  if turns then
    redis.call('ZREM', zset, LONG)
  end
  return n / 2
end

-- Formats a due time as an argument. The messages of a batch share few due times.
local due_texts = {}
local function due_text(due)
  local text = due_texts[due]
  if not text then
    text = whole(due)
    due_texts[due] = text
  end
  return text
end

-- Adds a message to the index of ordering keys, if the topic has one. It stays there until its end.
local function index(m)
  if m.key ~= '' and conf.key_index then
    size.bykey = size.bykey + 1
    redis.call('ZADD', BYKEY, 0, m.key .. '\0' .. m.id)
  end
end

-- Does what `unmerge` does, for messages with these scopes.
local function unmerge_all(ids, scopes)
  if #ids == 0 then
    return
  end
  local over = {}
  for i, id in ipairs(redis.call('HMGET', MERGE, unpack(scopes))) do
    if id == ids[i] then
      over[#over + 1] = scopes[i]
    end
  end
  if #over > 0 then
    redis.call('HDEL', MERGE, unpack(over))
  end
end

-- Ordering keys: the holder of a key is its one due message that is not parked. Messages that a pull took together hold
-- their key together: each between two spaces, even the last of them.
local function holder(g, key)
  return g.held > 0 and redis.call('HGET', g.holder, key)
end
-- Returns the holders but for a message, '' if there are no others, or nil if it does not hold the key.
local function without(holders, id)
  if holders == id or holders == ' ' .. id .. ' ' then
    return ''
  end
  local from, to = string.find(holders or '', ' ' .. id .. ' ', 1, true)
  return from and string.sub(holders, 1, from) .. string.sub(holders, to + 1)
end
local function holds(g, m)
  return m.key ~= '' and without(holder(g, m.key), m.id) ~= nil
end
-- Returns the first holder of a key, or '' if there is none.
local function first_holder(g, key)
  return string.match(holder(g, key) or '', '%S+') or ''
end
local function hold(g, key, id)
  g.held = g.held + 1
  redis.call('HSET', g.holder, key, id)
end

-- Returns true if only `pump` may put the group's messages on the stream.
local function is_gated(g)
  return is_shut or conf['paused:' .. g.name] or window or interval
end

local admit, release_all
-- Releases the ordering key of one message.
local function release(g, m)
  if m.key ~= '' then
    release_all(g, {m.id}, {m.key})
  end
end

-- Moves a copy to garbage (dead letters). A holder keeps its key if the topic's `on_garbage` is 'block'.
local function move_to_garbage(g, m, reason, attempts, error)
  put_in_garbage(g.garbage, g.garbage_info, conf['garbage_hook:' .. g.name] and g.garbage_hook, m.id, now, reason, attempts, error)
  forget_attempts(g, m)
  unmerge(m)
  if conf.on_garbage ~= 'block' then
    release(g, m)
  end
end

-- Ends a copy that is no longer worth delivering, as the topic's `on_expired` or `on_late` says. The error is `text`, then
-- the error of the last attempt. Returns the outcome.
local EXPIRED, LATE, NEVER_AGAIN = 'its ttl is over', 'it is too late', 'it expires before its next attempt'
local function lapse(g, m, attempts, rule, text, error)
  if conf[rule] == 'drop' then
    end_copy(g, m, 'expired', 3)
    unmerge(m)
    release(g, m)
    return 'expired'
  end
  count('lapsed:' .. g.name)
  move_to_garbage(g, m, 'expired', attempts, text .. (string.find(error, '^%Z') and ': ' or '') .. error)
  return 'garbage'
end
-- Ends a copy whose next attempt would come too late.
local function lapse_before(g, m, attempts, error)
  return lapse(g, m, attempts, 'on_expired', lapse_in(g, m) <= now and EXPIRED or NEVER_AGAIN, error)
end
-- Ends a copy that has expired or is too late.
local function lapse_now(g, m, attempts, error)
  local is_expired = lapse_in(g, m) <= now
  return lapse(g, m, attempts, is_expired and 'on_expired' or 'on_late', is_expired and EXPIRED or LATE, error)
end

-- Returns the time to note on an entry if the group has a rate and the attempt was due earlier: a hand-back returns its slot.
local function released_at(due)
  return interval and due < now and due_text(now)
end

-- Puts a copy on its group's stream, or ends it if it has lapsed. Returns true if it is on the stream. Only `emit_all` and
-- `move_due` also call XADD, for copies that have neither lapsed nor been tried. An attempt keeps its due time, however often
-- and however late it is delivered.
local budget = 20
local function emit(g, m, due)
  budget = budget - 1
  local value = g.tried > 0 and redis.call('HGET', g.attempts, m.id)
  local attempts, crashes, error, own_due = read_attempts(value)
  -- The clock may have stepped back since a requeue.
  due = own_due and math.min(own_due, now) or due or (m.has_meta and m.due or now)
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
  local released = released_at(due)
  if attempts == 0 and crashes == 0 and lapses == math.huge and not released then
    redis.call('XADD', g.ready, '*', 'i', m.id, 'd', due_text(due))
  else
    redis.call('XADD', g.ready, '*', write_fields(m.id, whole(due), attempts, crashes, lapses, released))
  end
  return true
end

-- Does what `emit` does for each message, in this order. Returns how many are on the stream. With ordering keys, does what
-- `admit` does for messages that were parked: even if the meta of one is lost, those parked behind it must go on.
local function emit_all(g, ids, keys)
  if #ids == 0 then
    return 0
  end
  local packed = size.meta > 0 and redis.call('HMGET', META, unpack(ids)) or {}
  local tried = g.tried > 0 and redis.call('HMGET', g.attempts, unpack(ids)) or {}
  local merging, scopes, sent = {}, {}, 0
  for i, id in ipairs(ids) do
    local due, lapses, merge, exempt, _
    if packed[i] and not tried[i] and not (keys and budget <= 0) then
      local key, ttl
      due, _, key, merge, ttl, exempt = metas.unpack(packed[i])
      if ttl ~= 0 then
        lapses = metas.lapse(due, ttl)
      end
      if max_lateness then
        lapses = math.min(lapses or math.huge, due + max_lateness)
      end
      if merge ~= '' then
        merging[#merging + 1], scopes[#scopes + 1] = id, key .. '\0' .. merge
      end
    end
    if not due or lapses and (lapses <= now or exempt) then
      -- It has attempts, has lapsed, or never lapses in some group.
      local m = message(id)
      if keys then
        m.key = keys[i]
        admit(g, m)
      elseif emit(g, m) then
        sent = sent + 1
      end
    else
      local released = released_at(due)
      if released then
        redis.call('XADD', g.ready, '*', write_fields(id, due_text(due), 0, 0, lapses or math.huge, released))
      elseif lapses then
        redis.call('XADD', g.ready, '*', 'i', id, 'd', due_text(due), 'x', whole(lapses))
      else
        redis.call('XADD', g.ready, '*', 'i', id, 'd', due_text(due))
      end
      budget, sent, g.stream = budget - 1, sent + 1, g.stream + 1
    end
  end
  unmerge_all(merging, scopes)
  return sent
end

-- Decides at the group's gates: into the backlog, or onto the stream. The budget bounds a chain of lapsed messages of a
-- key, each of which releases the next.
admit = function(g, m, due)
  if is_gated(g) or budget <= 0 then
    if not m.has_meta then
      write_meta(m)
    end
    g.gated = g.gated + 1
    redis.call('ZADD', g.backlog, whole(-m.priority), backlog_member(m))
  else
    emit(g, m, due)
  end
end

-- The only entrance of a copy that has become due: it is parked behind the holder of its key, or admitted. One of several
-- holders is parked, too: those that come again do so one by one, in the order of their key, when none is left in flight.
local function offer(g, m, due)
  if m.key ~= '' then
    local held = holder(g, m.key)
    if held and held ~= m.id then
      g.parked_count = g.parked_count + 1
      redis.call('ZADD', g.parked, 0, parked_member(m))
      if without(held, m.id) then
        release(g, m)
      end
      return
    elseif not held then
      hold(g, m.key, m.id)
    end
  end
  admit(g, m, due)
end

-- The only exit of messages from their ordering keys: after the last holder of a key, the next parked one becomes the holder
-- and is admitted. Messages that do not hold their key release nothing.
release_all = function(g, ids, keys)
  if #ids == 0 or g.held == 0 then
    return
  end
  local heads, free, held, next_ids, next_keys, is_over, rests = {}, {}, {}, {}, {}, {}, {}
  for i, holders in ipairs(redis.call('HMGET', g.holder, unpack(keys))) do
    local key = keys[i]
    local rest = not is_over[key] and without(rests[key] or holders, ids[i])
    if rest and rest ~= '' then
      rests[key] = rest
    elseif rest then
      is_over[key], rests[key] = true, nil
      local head = g.parked_count > 0
        and redis.call('ZRANGE', g.parked, '[' .. key .. '\0', '(' .. key .. '\1', 'BYLEX', 'LIMIT', '0', '1')[1]
      if head then
        local next = string.sub(head, #key + 28)
        heads[#heads + 1], next_ids[#next_ids + 1], next_keys[#next_keys + 1] = head, next, key
        held[#held + 1], held[#held + 2] = key, next
      else
        free[#free + 1] = key
      end
    end
  end
  if #free > 0 then
    redis.call('HDEL', g.holder, unpack(free))
  end
  for key, rest in pairs(rests) do
    held[#held + 1], held[#held + 2] = key, rest
  end
  if #held > 0 then
    redis.call('HSET', g.holder, unpack(held))
  end
  if #heads == 0 then
    return
  end
  redis.call('ZREM', g.parked, unpack(heads))
  if is_gated(g) then
    prefetch(next_ids)
    for i, id in ipairs(next_ids) do
      local next = message(id)
      next.key = next_keys[i]
      admit(g, next)
    end
  else
    emit_all(g, next_ids, next_keys)
  end
end

-- Returns the time up to which a group's rate is used up, and whether the stored time was cut back to it. An earlier slower
-- rate, or a clock that stepped back, leaves a time that would hold the group up longer than the present rate can.
local function used_up_to(g)
  local tat, most = tonumber(redis.call('HGET', STATS, 'tat:' .. g.name)) or now, now + burst * interval
  return math.min(math.max(tat, now), most), tat > most
end

-- Releases as much of the backlog as the group's gates allow: by priority, then due time, then arrival.
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
    sent = sent + emit_all(g, ids)
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

-- Returns a message, and 'waiting' or 'unknown' if that is its state. Unlike `find`, it needs no sizes of groups: a search
-- asks many shards that do not know the message.
local function locate(id)
  local m = message(id)
  m.waiting = redis.call('ZSCORE', WAITING, member(m))
  if m.waiting then
    return m, 'waiting'
  elseif is_gone[id] or redis.call('HEXISTS', PAYLOAD, id) == 0 then
    return m, 'unknown'
  end
  return m
end

-- Finds the copies of a message. Returns the message and 'waiting', 'unknown', 'in_flight' (a copy is on a stream),
-- 'garbage' (only there), or 'held'. After 'held' come a list of groups and states (backlog, parked, retry), and the
-- number of copies in garbage.
local function find(id)
  local m, where = locate(id)
  if where then
    return m, where
  end
  local states, in_garbage = {}, 0
  for _, g in ipairs(groups) do
    if g.retries > 0 and redis.call('ZSCORE', g.retry, member(m)) then
      states[#states + 1] = {g = g, zset = 'retry', member = member(m)}
    elseif g.gated > 0 and redis.call('ZSCORE', g.backlog, backlog_member(m)) then
      states[#states + 1] = {g = g, zset = 'backlog', member = backlog_member(m)}
    elseif g.parked_count > 0 and redis.call('ZSCORE', g.parked, parked_member(m)) then
      states[#states + 1] = {g = g, zset = 'parked', member = parked_member(m)}
    elseif g.garbage_count > 0 and redis.call('ZSCORE', g.garbage, id) then
      in_garbage = in_garbage + 1
    end
  end
  if #states + in_garbage < owed(id) then
    return m, 'in_flight'
  elseif #states == 0 then
    return m, 'garbage'
  end
  return m, 'held', states, in_garbage
end

-- Takes a copy out of its state and releases its key.
local function take_out(m, at)
  redis.call('ZREM', at.g[at.zset], at.member)
  if at.zset == 'backlog' then
    at.g.gated = at.g.gated - 1
  end
  release(at.g, m)
end

-- Puts a message whose copies were all taken out back into `waiting`, as one that arrives now.
local function wait_again(m, due, states)
  for _, at in ipairs(states) do
    count('moved:' .. at.g.name, -1)
  end
  if #states > 0 then
    count('moved', -1)
    if size.left > 0 then
      set_owed(m.id, 0)
    end
  end
  m.due, m.lapse = due, metas.lapse(due, m.ttl)
  if m.has_meta then
    m.seq = arrive()
    write_meta(m)
  end
  redis.call('ZADD', WAITING, due, member(m))
  look_at(due)
end

-- Cancels a message, unless a copy is on a stream or all copies are in garbage. Returns the outcome and the record.
local function cancel(id)
  local m, where, states = find(id)
  if where ~= 'waiting' and where ~= 'held' then
    return where
  end
  local record = redis.call('HGET', PAYLOAD, id)
  if where == 'waiting' then
    redis.call('ZREM', WAITING, member(m))
    count('cancelled')
    forget(m)
  else
    for _, at in ipairs(states) do
      take_out(m, at)
      end_copy(at.g, m, 'cancelled')
    end
  end
  entomb(TOMB, id, now, 1)
  return 'cancelled', record or ''
end

-- Writes the collected changes. The last ranked message takes the window that ranked messages brought with it; the mover
-- then releases what the window held back.
local function flush()
  if conf.window and (tonumber(stats[4]) or 0) + (counts.ranked or 0) <= 0 then
    redis.call('HDEL', CONF, 'window')
    look_at(now)
  end
  local owing, free, texts = {}, {}, {}
  for id, n in pairs(left_changed) do
    if n > 0 then
      texts[n] = texts[n] or whole(n)
      owing[#owing + 1], owing[#owing + 2] = id, texts[n]
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

-- Ends every script that changes messages: refills freed capacity, writes the collected changes, and wakes the mover if it
-- has something to do sooner than it expects.
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
