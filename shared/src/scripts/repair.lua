#!lua flags=allow-oom
-- repair: looks at one message as `examine` does, and mends what is wrong with it.
--
-- ARGV[3] tails    pairs   group and last entry of each stream that was walked, in one text, or '-' for an entry of an empty one
-- ARGV[4] id       text    message id
-- ARGV[5] hints    list    hints at its places
--
-- Returns 'repaired', then for each fault four: message id, code, group or '', and what was seen and done; the code is
--   'behind' as in `examine`, and then nothing was done.
-- Cost O(log N) for each place.
-- Safe to repeat: what was mended is not found again.
local id, first = ARGV[4], 5

survey_all()
read_tails(ARGV[3])
local at = look(id, {unpack(ARGV, first)})
local m = at.m
local faults = judge(at)
local reply = {'repaired'}
if #faults > 0 and at.behind then
  tell(reply, id, {code = 'behind', g = by_name[at.behind], text = 'the stream grows'})
  return reply
end

-- What the sums miss: copies of a group, or waiting messages.
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
  g.missing = total('moved:' .. g.name) + total('shifted:' .. g.name) - g.stream - g.gated - g.parked - g.retries - g.buried
  for _, ending in ipairs({'acked', 'cancelled', 'expired', 'purged', 'lost', 'dropped'}) do
    g.missing = g.missing - total(ending .. ':' .. g.name)
  end
end

-- Takes a place away; whether that is counted is the caller's business.
local SIZES = {retry = 'retries', backlog = 'gated', lane = 'parked', garbage = 'buried'}
local function remove(place)
  local g = place.g
  if place.entry then
    redis.call('XACK', g.ready, g.name, place.entry)
    redis.call('XDEL', g.ready, place.entry)
    g.stream = g.stream - 1
  else
    redis.call('ZREM', place.key, place.member)
    if place.kind == 'garbage' then
      redis.call('HDEL', g.dead, id)
      redis.call('ZREM', g.notices, id)
    end
    if g then
      g[SIZES[place.kind]] = g[SIZES[place.kind]] - 1
    end
  end
  if g then
    g.missing = g.missing + 1
  end
end

-- Puts a copy that a group should have where it can go on: into garbage if a dead record says that it was there, else
-- into retry, due now.
local function put_back(g)
  g.missing = g.missing - 1
  if redis.call('HEXISTS', g.dead, id) == 1 then
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

-- Sets how many groups owe the message, who `n` do.
local function owe(n)
  if n > 1 or redis.call('HEXISTS', LEFT, id) == 1 then
    size.left = size.left + 1
    set_owed(id, n)
  end
end

local mend = {}

function mend.orphan()
  local was_moved = redis.call('HEXISTS', LEFT, id) == 1
  for _, g in ipairs(groups) do
    was_moved = was_moved or redis.call('HEXISTS', g.attempts, id) == 1 or redis.call('HEXISTS', g.dead, id) == 1
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

function mend.ghost()
  local counted = {}
  for _, place in ipairs(at.all) do
    remove(place)
    local g = place.g
    if g and not counted[g.name] then
      counted[g.name] = true
      if is_gone[id] then
        -- `left` did not know of this copy.
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
  mend.leftover()
  return 'removed, and counted as lost'
end

function mend.leftover()
  if not is_gone[id] then
    forget(m)
  end
  owe(0)
  for _, g in ipairs(groups) do
    redis.call('HDEL', g.attempts, id)
    if not is_dropping(g) then
      redis.call('HDEL', g.dead, id)
      redis.call('ZREM', g.notices, id)
    end
  end
  return 'removed'
end

-- The furthest along is kept: what a consumer has, then what comes soonest. What is in garbage as well is delivered.
local RANKS = {in_flight = 7, ready = 6, unheld = 5, retry = 4, backlog = 3, lane = 2, garbage = 1}
function mend.twice()
  local kept = {}
  for _, g in ipairs(groups) do
    local copies = at.copies[g.name] or {}
    local best = copies[1]
    for _, place in ipairs(copies) do
      -- Of two entries the later one, since the message came again with it.
      if RANKS[place.kind] > RANKS[best.kind] or place.entry and place.kind == best.kind then
        best = place
      end
    end
    for _, place in ipairs(copies) do
      if place ~= best then
        remove(place)
      end
    end
    kept[#kept + 1] = best
  end
  for i, place in ipairs(at.waiting) do
    if at.groups > 0 or i > 1 then
      remove(place)
    else
      kept[1] = place
    end
  end
  return 'kept in ' .. describe(kept)
end

function mend.left()
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

-- A message whose meta is lost gets it again, as far as the name tells it.
local function restore_meta(place)
  local due, seq = string.match(place.member, '(%d%d%d%d%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d%d%d%d)')
  if place.kind == 'lane' then
    m.key = string.match(place.member, '^([^%z]*)%z')
    due, seq = string.match(place.member, '^[^%z]*%z(%d%d%d%d%d%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d%d%d%d)')
  elseif place.kind ~= 'backlog' then
    due, seq = place.score, string.match(place.member, '^~(%d%d%d%d%d%d%d%d%d%d%d%d)')
  end
  m.due, m.seq = tonumber(due) or now, tonumber(seq) or 0
  if place.kind == 'backlog' then
    m.priority = -place.score
  end
  write_meta(m)
  redis.call('HSET', CONF, 'class', 'full')
end

function mend.member(f)
  local place = f.place
  if not m.has_meta then
    restore_meta(place)
    return 'what its name tells was put into its meta'
  end
  remove(place)
  if place.kind == 'lane' then
    place.g.missing = place.g.missing - 1
    offer(place.g, m)
  elseif place.kind == 'backlog' then
    place.g.gated = place.g.gated + 1
    redis.call('ZADD', place.key, -m.priority, natural(m, place.kind))
  else
    redis.call('ZADD', place.key, place.score, natural(m, place.kind))
    look_at(place.score)
  end
  return 'put in again'
end

function mend.garbage(f)
  if f.drop and redis.call('ZSCORE', f.g.garbage, id) then
    return 'it is there again'
  elseif f.drop == 'dead' then
    redis.call('HDEL', f.g.dead, id)
  elseif f.drop then
    redis.call('ZREM', f.g.notices, id)
  else
    redis.call('HSET', f.g.dead, id, 'rejected 0 why it was given up is lost')
    return 'it got a record that says nothing'
  end
  return 'removed'
end

function mend.entry(f)
  local g = f.g
  if f.hollow then
    redis.call('XACK', g.ready, g.name, f.hollow)
    return 'it is pending no more'
  end
  remove(f.place)
  redis.call('ZADD', g.retry, now, member(m))
  count('recovered:' .. g.name)
  look_at(now)
  return 'back to retry'
end

function mend.key(f)
  local g = f.g
  local held = redis.call('HGET', g.holder, f.key)
  if f.mend == 'hold' then
    if not held then
      hold(g, f.key, id)
    end
    return 'it holds its key'
  elseif not held then
    hold(g, f.key, id)
  elseif held ~= id then
    return 'another one holds the key by now'
  end
  release(g, {id = id, key = f.key})
  local next = redis.call('HGET', g.holder, f.key)
  return next and 'the key goes on with ' .. next or 'the key is free'
end

function mend.merge(f)
  redis.call('HDEL', MERGE, f.scope)
  return 'removed'
end

function mend.index(f)
  redis.call('ZREM', BYKEY, f.indexed)
  return 'removed'
end

for _, f in ipairs(faults) do
  local done = mend[f.code](f)
  f.text = f.text .. '; ' .. done
  tell(reply, id, f)
end
if #faults > 0 then
  finish()
end
return reply
