#!lua flags=allow-oom
-- repair: looks at one message as `examine` does, and repairs what is wrong with it.
--
-- ARGV[3] tails    pairs   group and last entry of each stream that was walked, as one text; '-' for an empty stream
-- ARGV[4] id       text    message id
-- ARGV[5] hints    list    where the walk saw it
--
-- Returns 'repaired', then for each fault four: message id, code, group or '', and what was seen and done. The code is
--   'behind' as in `examine`; then nothing was done.
-- Cost O(log N) for each state.
-- Safe to repeat: a repaired fault is not found again.
local id, first = ARGV[4], 5

read_all_sizes()
read_tails(ARGV[3])
local at = look(id, {unpack(ARGV, first)})
local m = at.m
local faults = judge(at)
local reply = {'repaired'}
if #faults > 0 and at.behind then
  tell(reply, id, {code = 'behind', g = by_name[at.behind], text = 'the stream grows'})
  return reply
end

-- How many the counters expect beyond what the shard holds: waiting messages, and copies of each group.
local totals = {}
local field_values = redis.call('HGETALL', STATS)
for i = 1, #field_values, 2 do
  totals[field_values[i]] = tonumber(field_values[i + 1])
end
local function total(what)
  return totals[what] or 0
end
local missing = total('accepted') + total('shifted') - size.waiting - total('cancelled') - total('merged') - total('moved')
for _, g in ipairs(groups) do
  g.missing = total('moved:' .. g.name) + total('shifted:' .. g.name) - g.stream - g.gated - g.parked_count - g.retries - g.garbage_count
  for _, ending in ipairs({'acked', 'cancelled', 'expired', 'purged', 'lost', 'dropped'}) do
    g.missing = g.missing - total(ending .. ':' .. g.name)
  end
end

-- Removes a state. The caller counts it if necessary.
local SIZES = {retry = 'retries', backlog = 'gated', parked = 'parked_count', garbage = 'garbage_count'}
local function remove(state)
  local g = state.g
  if state.entry then
    redis.call('XACK', g.ready, g.name, state.entry)
    redis.call('XDEL', g.ready, state.entry)
    g.stream = g.stream - 1
  else
    redis.call('ZREM', state.key, state.member)
    if state.kind == 'garbage' then
      redis.call('HDEL', g.garbage_info, id)
      redis.call('ZREM', g.garbage_hook, id)
    end
    if g then
      g[SIZES[state.kind]] = g[SIZES[state.kind]] - 1
    end
  end
  if g then
    g.missing = g.missing + 1
  end
end

-- Restores a copy that a group should have: into garbage if it has garbage_info, else into retry, due now.
local function put_back(g)
  g.missing = g.missing - 1
  if redis.call('HEXISTS', g.garbage_info, id) == 1 then
    redis.call('ZADD', g.garbage, now, id)
    return 'garbage:' .. g.name
  end
  redis.call('ZADD', g.retry, now, member(m))
  look_at(now)
  return 'retry:' .. g.name
end
local function missing_copies(most)
  local put = {}
  for _, g in ipairs(groups) do
    if g.missing > 0 and not at.copies[g.name] and #put < most then
      put[#put + 1] = put_back(g)
    end
  end
  return put
end

-- Records that `n` groups owe the message.
local function owe(n)
  if n > 1 or redis.call('HEXISTS', LEFT, id) == 1 then
    size.left = size.left + 1
    set_owed(id, n)
  end
end

local repair = {}

function repair.orphan()
  local was_moved = redis.call('HEXISTS', LEFT, id) == 1
  for _, g in ipairs(groups) do
    was_moved = was_moved or redis.call('HEXISTS', g.attempts, id) == 1 or redis.call('HEXISTS', g.garbage_info, id) == 1
  end
  if was_moved or missing <= 0 then
    local put = missing_copies(#groups)
    if #put > 0 then
      owe(#put)
      return 'back to ' .. table.concat(put, ', ')
    end
  end
  if missing <= 0 then
    count('accepted')
  end
  owe(0)
  local due = math.max(m.has_meta and m.due or now, now)
  redis.call('ZADD', WAITING, due, member(m))
  look_at(due)
  return 'back to waiting, due ' .. (due > now and 'as it was' or 'now')
end

function repair.ghost()
  local counted = {}
  for _, state in ipairs(at.all) do
    remove(state)
    local g = state.g
    if g and not counted[g.name] then
      counted[g.name] = true
      if is_gone[id] then
        -- `left` did not include this copy.
        count('lost:' .. g.name)
      else
        end_copy(g, m, 'lost')
      end
      release(g, m)
    end
  end
  if #at.waiting > 0 and at.groups == 0 then
    count('moved')
    for _, g in ipairs(groups) do
      if not conf['retiring:' .. g.name] then
        count('moved:' .. g.name)
        count('lost:' .. g.name)
      end
    end
  end
  repair.leftover()
  return 'removed, and counted as lost'
end

function repair.leftover()
  if not is_gone[id] then
    forget(m)
  end
  owe(0)
  for _, g in ipairs(groups) do
    redis.call('HDEL', g.attempts, id)
    if not is_dropping(g) then
      redis.call('HDEL', g.garbage_info, id)
      redis.call('ZREM', g.garbage_hook, id)
    end
  end
  return 'removed'
end

-- Keeps the copy that is furthest along: first one that a consumer has, then the one that comes soonest. A copy that is
-- also in garbage is delivered.
local RANKS = {in_flight = 7, ready = 6, unheld = 5, retry = 4, backlog = 3, parked = 2, garbage = 1}
function repair.twice()
  local kept = {}
  for _, g in ipairs(groups) do
    local copies = at.copies[g.name] or {}
    local best = copies[1]
    for _, state in ipairs(copies) do
      -- Of two entries it keeps the later one, with which the message came again.
      if RANKS[state.kind] > RANKS[best.kind] or state.entry and state.kind == best.kind then
        best = state
      end
    end
    for _, state in ipairs(copies) do
      if state ~= best then
        remove(state)
      end
    end
    kept[#kept + 1] = best
  end
  for i, state in ipairs(at.waiting) do
    if at.groups > 0 or i > 1 then
      remove(state)
    else
      kept[1] = state
    end
  end
  return 'kept in ' .. describe(kept)
end

function repair.left()
  local put = {}
  if at.groups == 0 then
    owe(0)
    return 'nothing is owed while it waits'
  end
  local owes = tonumber(redis.call('HGET', LEFT, id)) or 1
  if owes > at.groups then
    put = missing_copies(owes - at.groups)
  end
  owe(at.groups + #put)
  return #put > 0 and 'back to ' .. table.concat(put, ', ') or at.groups .. ' is left'
end

-- Rebuilds a lost meta from what the zset member contains.
local function restore_meta(state)
  local due, seq = string.match(state.member, '(%d%d%d%d%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d%d%d%d)')
  if state.kind == 'parked' then
    m.key = string.match(state.member, '^([^%z]*)%z')
    due, seq = string.match(state.member, '^[^%z]*%z(%d%d%d%d%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d%d%d%d)')
  elseif state.kind ~= 'backlog' then
    due, seq = state.score, string.match(state.member, '^~(%d%d%d%d%d%d%d%d%d%d%d%d)')
  end
  m.due, m.seq = tonumber(due) or now, tonumber(seq) or 0
  if state.kind == 'backlog' then
    m.priority = -state.score
  end
  write_meta(m)
  redis.call('HSET', CONF, 'class', 'general')
end

function repair.member(f)
  local state = f.state
  if not m.has_meta then
    restore_meta(state)
    return 'its meta was restored from its name'
  end
  remove(state)
  if state.kind == 'parked' then
    state.g.missing = state.g.missing - 1
    offer(state.g, m)
  elseif state.kind == 'backlog' then
    state.g.gated = state.g.gated + 1
    redis.call('ZADD', state.key, -m.priority, natural(m, state.kind))
  else
    redis.call('ZADD', state.key, state.score, natural(m, state.kind))
    look_at(state.score)
  end
  return 'put in again'
end

function repair.garbage(f)
  if f.drop and redis.call('ZSCORE', f.g.garbage, id) then
    return 'restored'
  elseif f.drop == 'garbage_info' then
    redis.call('HDEL', f.g.garbage_info, id)
  elseif f.drop then
    redis.call('ZREM', f.g.garbage_hook, id)
  else
    redis.call('HSET', f.g.garbage_info, id, 'rejected 0 the reason is lost')
    return 'an empty record was added'
  end
  return 'removed'
end

function repair.entry(f)
  local g = f.g
  if f.hollow then
    redis.call('XACK', g.ready, g.name, f.hollow)
    return 'it is no longer pending'
  end
  remove(f.state)
  redis.call('ZADD', g.retry, now, member(m))
  count('recovered:' .. g.name)
  look_at(now)
  return 'back to retry'
end

function repair.key(f)
  local g = f.g
  local held = redis.call('HGET', g.holder, f.key)
  if f.repair == 'hold' then
    if not held then
      hold(g, f.key, id)
    end
    return 'it holds its key'
  elseif not held then
    hold(g, f.key, id)
  elseif not without(held, id) then
    return 'another message holds the key now'
  end
  release(g, {id = id, key = f.key})
  local next = first_holder(g, f.key)
  return next ~= '' and 'the key goes on with ' .. next or 'the key is free'
end

function repair.merge(f)
  redis.call('HDEL', MERGE, f.scope)
  return 'removed'
end

function repair.index(f)
  redis.call('ZREM', BYKEY, f.indexed)
  return 'removed'
end

for _, f in ipairs(faults) do
  local done = repair[f.code](f)
  f.text = f.text .. '; ' .. done
  tell(reply, id, f)
end
if #faults > 0 then
  finish()
end
return reply
