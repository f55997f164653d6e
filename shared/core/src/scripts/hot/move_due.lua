#!lua flags=allow-oom
-- move_due: moves due messages to the groups of a general topic, with waiting and retry merged by time.
--
-- ARGV[3] batch    count   most stream entries to write, 1 to 100
-- ARGV[4] idle     ms      time until the caller looks again if nothing becomes due before
--
-- Returns 'moved', number of copies moved, µs until the next look (0: more may be due);
--   or 'paused' (also if the shard is closed); or 'class' (the topic is plain).
-- Cost O(n log N) for n copies, and as much for those that a gate releases.
-- Safe to repeat: a moved message is no longer due.
local batch, idle = tonumber(ARGV[3]), tonumber(ARGV[4])

if conf.class ~= 'general' and #groups == 1 then
  return {'class'}
elseif is_shut then
  return {'paused'}
end
read_all_sizes()

-- A message becomes due for all groups at the same time. While every group is paused, it stays in waiting.
local active, open = {}, false
for _, g in ipairs(groups) do
  if not conf['retiring:' .. g.name] then
    active[#active + 1] = g
    open = open or not conf['paused:' .. g.name]
  end
end
-- While the topic is being resharded, earlier messages of a key may still be in transit to this shard.
local last = math.min(now, (tonumber(conf.watermark) or math.huge) - 1)
local lists, has_retries = {}, false
local function list(zset, limit, cost, g)
  lists[#lists + 1] = {zset = zset, found = {}, next = 1, limit = limit, cost = cost, g = g}
  return lists[#lists]
end
local function due_in(l, ...)
  return redis.call('ZRANGE', l.zset, '-inf', last, 'BYSCORE', 'LIMIT', 0, l.limit, ...)
end
local waiting = open and list(WAITING, math.ceil(batch / #active), #active)
for _, g in ipairs(groups) do
  if g.retries > 0 and not conf['paused:' .. g.name] then
    local retries = list(g.retry, batch, 1, g)
    retries.found = due_in(retries, 'WITHSCORES')
    has_retries = has_retries or #retries.found > 0
  end
end

-- Returns the members of waiting that are due, their ids and `meta` values, and the due times of those without `meta`. For the
-- others, `meta` has the due time. Reading it there is faster than reading a score, which Redis must format.
local function due_waiting()
  local members, ids, packed, dues = {}, {}, {}, {}
  if size.meta == 0 then
    local found = due_in(waiting, 'WITHSCORES')
    for i = 1, #found / 2 do
      members[i], ids[i], dues[i] = found[2 * i - 1], id_of(found[2 * i - 1]), found[2 * i]
    end
    return members, ids, packed, dues
  end
  members = due_in(waiting)
  for i, text in ipairs(members) do
    ids[i] = id_of(text)
  end
  if #ids == 0 then
    return members, ids, packed, dues
  end
  packed = redis.call('HMGET', META, unpack(ids))
  local bare, positions = {}, {}
  for i, text in ipairs(members) do
    if not packed[i] then
      bare[#bare + 1], positions[#positions + 1] = text, i
    end
  end
  if #bare > 0 then
    for at, due in ipairs(redis.call('ZMSCORE', WAITING, unpack(bare))) do
      dues[positions[at]] = due
    end
  end
  return members, ids, packed, dues
end

-- Moves messages from waiting to the groups as `offer` does, but with one command for each kind of change. Returns how many,
-- or nil with nothing changed if a message that would go on a stream has attempts, has lapsed, or can be merged into.
local function move_waiting()
  local members, ids, packed, dues = due_waiting()
  local n, direct = #members, {}
  if n == 0 then
    return 0
  end
  for _, g in ipairs(active) do
    if not is_gated(g) then
      direct[#direct + 1] = g
      if g.tried > 0 then
        for _, tried in ipairs(redis.call('HMGET', g.attempts, unpack(ids))) do
          if tried then
            return nil
          end
        end
      end
    end
  end
  local keyed, keys, ranks, lapses, bare = {}, {}, {}, {}, {}
  for i = 1, n do
    local due, priority, ttl, key, merge, exempt, _ = tonumber(dues[i]), 0, 0, '', ''
    if packed[i] then
      due, priority, key, merge, ttl, exempt = metas.unpack(packed[i])
      dues[i] = due_text(due)
    elseif #direct < #active then
      bare[#bare + 1], bare[#bare + 2] = ids[i], metas.pack(0, due, 0, 0, 0, '', '')
    end
    if #direct > 0 and (ttl ~= 0 or max_lateness or merge ~= '') then
      local lapse = metas.lapse(due, ttl)
      if max_lateness then
        lapse = math.min(lapse, due + max_lateness)
      end
      if lapse <= now or exempt or merge ~= '' then
        return nil
      end
      lapses[i] = whole(lapse)
    end
    if key ~= '' then
      keyed[i], keys[#keys + 1] = key, key
    end
    ranks[i] = priority == 0 and '0' or whole(-priority)
  end

  -- Returns what `backlog_member` returns. A member of waiting ends in the same way, with arrival and id.
  local stamps = {}
  local function order(i)
    local due, text = dues[i], members[i]
    stamps[due] = stamps[due] or string.format('%014d', due)
    return stamps[due] .. (packed[i] and text ~= ids[i] and string.sub(text, 2) or '000000000000' .. ids[i])
  end
  redis.call('ZREMRANGEBYRANK', WAITING, 0, n - 1)
  if #bare > 0 then
    size.meta = size.meta + hset_all(META, size.meta, bare)
  end
  if #active > 1 then
    local owing, all = {}, whole(#active)
    for i, id in ipairs(ids) do
      owing[2 * i - 1], owing[2 * i] = id, all
    end
    size.left = size.left + hset_all(LEFT, size.left, owing)
  end
  count('moved', n)
  for _, g in ipairs(active) do
    count('moved:' .. g.name, n)
    local holders, held, parked, backlog, gated = {}, {}, {}, {}, is_gated(g)
    if #keys > 0 and g.held > 0 then
      for i, id in ipairs(redis.call('HMGET', g.holder, unpack(keys))) do
        holders[keys[i]] = id
      end
    end
    for i, id in ipairs(ids) do
      local key, holder = keyed[i], nil
      if key then
        holder = holders[key]
        if not holder then
          holders[key] = id
          held[#held + 1], held[#held + 2] = key, id
        end
      end
      if holder and holder ~= id then
        parked[#parked + 1], parked[#parked + 2] = '0', key .. '\0' .. order(i)
      elseif gated then
        backlog[#backlog + 1], backlog[#backlog + 2] = ranks[i], order(i)
      elseif lapses[i] then
        redis.call('XADD', g.ready, '*', 'i', id, 'd', dues[i], 'x', lapses[i])
      else
        redis.call('XADD', g.ready, '*', 'i', id, 'd', dues[i])
      end
    end
    if not gated then
      local sent = n - #parked / 2
      budget, g.stream = budget - sent, g.stream + sent
    end
    if #held > 0 then
      g.held = g.held + hset_all(g.holder, g.held, held)
    end
    if #parked > 0 then
      g.parked_count = g.parked_count + zadd_all(g.parked, g.parked_count, parked)
    end
    if #backlog > 0 then
      g.gated = g.gated + zadd_all(g.backlog, g.gated, backlog)
    end
  end
  return n
end

-- All lists are taken up to one common time, and equal times by arrival. Otherwise an earlier message of a key could come
-- after a later one.
local function arrival(member)
  return string.sub(member, 1, 1) == '~' and string.sub(member, 2, 13) or ''
end
local function move_each()
  local used = 0
  local picks, ids = {}, {}
  while used < batch do
    local soonest
    for _, l in ipairs(lists) do
      local time = tonumber(l.found[l.next + 1])
      if time and (not soonest or time < soonest.time
          or time == soonest.time and arrival(l.found[l.next]) < arrival(soonest.list.found[soonest.list.next])) then
        soonest = {list = l, time = time}
      end
    end
    if not soonest then
      break
    end
    local l = soonest.list
    ids[#ids + 1] = id_of(l.found[l.next])
    picks[#picks + 1] = {id = ids[#ids], due = soonest.time, g = l.g}
    l.next = l.next + 2
    used = used + l.cost
  end
  for _, l in ipairs(lists) do
    if l.next > 1 then
      redis.call('ZREMRANGEBYRANK', l.zset, 0, (l.next - 1) / 2 - 1)
    end
  end

  prefetch(ids)
  for _, pick in ipairs(picks) do
    local m, g = message(pick.id), pick.g
    local attempts, crashes, error, own_due = read_attempts(g and g.tried > 0 and redis.call('HGET', g.attempts, m.id))
    local due = own_due or pick.due
    if not m.has_meta then
      m.due = due
    end
    if g then
      local waits = is_gated(g) or budget <= 0 or m.key ~= '' and (holder(g, m.key) or m.id) ~= m.id
      if waits and not own_due and due ~= m.due then
        -- A backlog and parked messages are in the order of the messages' due times, so this one must be kept.
        g.tried = g.tried + 1
        write_attempts(g.attempts, m.id, attempts, crashes, error, due)
      end
      offer(g, m, due)
    else
      count('moved')
      if #active > 1 then
        size.left = size.left + 1
        set_owed(m.id, #active)
      end
      for _, group in ipairs(active) do
        count('moved:' .. group.name)
        offer(group, m, pick.due)
      end
    end
  end
  return used
end
budget = batch + 20
local moved = waiting and not has_retries and move_waiting()
local used = moved and moved * #active
if not used then
  if waiting then
    waiting.found = due_in(waiting, 'WITHSCORES')
  end
  used = move_each()
end
for _, g in ipairs(groups) do
  pump(g)
end
flush()

-- After a full batch the mover calls again immediately, so no script needs to wake it: alarm 0.
local more = used >= batch
local look, pause = 0, 0
if not more then
  look = math.min(now + idle, earliest)
  for _, l in ipairs(lists) do
    local next = redis.call('ZRANGE', l.zset, 0, 0, 'WITHSCORES')
    local time = tonumber(next[2]) or look
    -- What the watermark holds back moves after the call that raises it, which wakes the mover.
    if time <= last or time > now then
      look = math.min(look, time)
    end
  end
  pause = math.max((look - now) * 1000 - us, 0)
end
redis.call('HSET', STATS, 'last_time', now, 'alarm', look)
return {'moved', used, pause}
