-- What the scripts of the doctor share: all places of one message at one instant, and what is wrong with them.
--
-- A hint says where a walk saw something of a message: '<what>:<group> <text>', the group empty for what the groups
-- share. Members that the message would not have by its `meta` are only found by hints; so are entries of a stream,
-- but for those behind its tail, which is where the walk of that stream ended.
local TAIL = math.ceil(200 / math.max(#groups, 1))

local by_name = {}
for _, g in ipairs(groups) do
  by_name[g.name] = g
end
-- While a group is dropped its keys are half gone, and nobody follows on them.
local function is_dropping(g)
  return conf['retiring:' .. g.name] == 'drop'
end

-- The entries behind the tail of a group's stream, by message id. They are looked at here, as the walk did not.
local function read_tail(g, tail)
  local entries = redis.call('XRANGE', g.ready, tail == '-' and '-' or '(' .. tail, '+', 'COUNT', TAIL)
  g.behind, g.latest = #entries == TAIL, {}
  for _, entry in ipairs(entries) do
    local id = ''
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'i' then
        id = entry[2][i + 1]
      end
    end
    g.latest[id] = g.latest[id] or {}
    table.insert(g.latest[id], entry[1])
  end
end
-- Reads '<group> <last entry or ->' for each stream that was walked; '?' if none was.
local function read_tails(text)
  local tails = {}
  for name, tail in string.gmatch(text, '(%S+) (%S+)') do
    tails[name] = tail
  end
  for _, g in ipairs(groups) do
    if text ~= '?' then
      read_tail(g, tails[g.name] or '-')
    end
  end
end

local function is_delivered(g, entry)
  if g.delivered == nil then
    g.delivered = last_delivered(g) or false
  end
  local ms, seq = string.match(entry, '^(%d+)-(%d+)$')
  local last_ms, last_seq = string.match(g.delivered or '', '^(%d+)-(%d+)$')
  ms, seq, last_ms, last_seq = tonumber(ms), tonumber(seq), tonumber(last_ms), tonumber(last_seq)
  return last_ms and (ms < last_ms or ms == last_ms and seq <= last_seq)
end

-- Whether a group has an entry pending: 'in_flight', 'ready', or 'unheld' if it was delivered and is with nobody.
local function entry_kind(g, entry)
  local held = redis.pcall('XPENDING', g.ready, g.name, entry, entry, 1)
  if not held.err and #held > 0 then
    return 'in_flight'
  end
  return not held.err and is_delivered(g, entry) and 'unheld' or 'ready'
end

-- The place of what a zset has, as the message would be found there.
local function natural(m, kind)
  if kind == 'backlog' then
    return backlog_member(m)
  elseif kind == 'lane' then
    return lane_member(m)
  elseif kind == 'garbage' then
    return m.id
  end
  return member(m)
end

-- What a member of a zset, a field of a hash or its value says of a message's id.
local function id_in(what, field, value)
  if what == 'waiting' or what == 'retry' then
    return id_of(field)
  elseif what == 'backlog' then
    return string.sub(field, 27)
  elseif what == 'lane' then
    return string.match(field, '^[^%z]*%z' .. string.rep('%d', 26) .. '(.*)$') or ''
  elseif what == 'index' then
    return string.match(field, '^[^%z]*%z(.*)$') or ''
  elseif what == 'holder' or what == 'merge' then
    return value
  end
  return field
end

local function split_hint(hint)
  local what, name, text = string.match(hint, '^(%l+):(%S*) (.*)$')
  return what, by_name[name], text
end

local ZSETS = {retry = true, backlog = true, lane = true, garbage = true}
-- Where a message is, in one look: `waiting`, a list of places; `copies`, such a list for each group; and their number.
local function look(id, hints, is_stored)
  local m = message(id)
  local at = {id = id, m = m, hints = hints, waiting = {}, copies = {}, groups = 0, all = {}}
  at.stored = is_stored or redis.call('HEXISTS', PAYLOAD, id) == 1
  -- Only hints can lead to a place that was asked for already.
  local seen = #hints > 0 and {}
  local function is_new(key, text)
    if not seen then
      return true
    end
    local name = key .. ' ' .. text
    local known = seen[name]
    seen[name] = true
    return not known
  end
  local function add(place)
    at.all[#at.all + 1] = place
    if not place.g then
      table.insert(at.waiting, place)
    else
      local copies = at.copies[place.g.name]
      if not copies then
        copies = {}
        at.copies[place.g.name] = copies
        at.groups = at.groups + 1
      end
      copies[#copies + 1] = place
    end
  end
  local function ask(kind, g, key, text)
    local score = is_new(key, text) and redis.call('ZSCORE', key, text)
    if score then
      add({kind = kind, g = g, key = key, member = text, score = tonumber(score)})
    end
  end
  local function ask_entry(g, entry)
    local fields = is_new(g.ready, entry) and read_entry(g.ready, entry)
    if fields and (fields.i or '') == id then
      add({kind = entry_kind(g, entry), g = g, key = g.ready, entry = entry})
    end
  end
  if size.waiting > 0 then
    ask('waiting', nil, WAITING, member(m))
  end
  for _, g in ipairs(groups) do
    if g.retries > 0 then
      ask('retry', g, g.retry, member(m))
    end
    if g.gated > 0 and m.has_meta then
      ask('backlog', g, g.backlog, backlog_member(m))
    end
    if g.parked > 0 and m.key ~= '' then
      ask('lane', g, g.lane, lane_member(m))
    end
    if g.buried > 0 then
      ask('garbage', g, g.garbage, id)
    end
    for _, entry in ipairs(g.latest and g.latest[id] or {}) do
      ask_entry(g, entry)
    end
    at.behind = at.behind or g.behind and g.name
  end
  for _, hint in ipairs(hints) do
    local what, g, text = split_hint(hint)
    if what == 'waiting' then
      ask(what, nil, WAITING, text)
    elseif g and ZSETS[what] then
      ask(what, g, g[what], text)
    elseif g and what == 'entry' then
      ask_entry(g, text)
    end
  end
  return at
end

local function describe(places)
  local words = {}
  for _, place in ipairs(places) do
    words[#words + 1] = place.g and place.kind .. ':' .. place.g.name or place.kind
  end
  return table.concat(words, ', ')
end

-- What is kept of a message that is not stored.
local function leftovers(id)
  local found = {}
  local function ask(key, what)
    if redis.call('HEXISTS', key, id) == 1 then
      found[#found + 1] = what
    end
  end
  ask(META, 'meta')
  ask(LEFT, 'left')
  for _, g in ipairs(groups) do
    ask(g.attempts, 'attempts:' .. g.name)
    if not is_dropping(g) then
      ask(g.dead, 'dead:' .. g.name)
      if redis.call('ZSCORE', g.notices, id) then
        found[#found + 1] = 'notices:' .. g.name
      end
    end
  end
  return table.concat(found, ', ')
end

-- What only a hint leads to: pointers that point nowhere.
local function judge_hint(at, hint, fault)
  local what, g, text = split_hint(hint)
  local m, id = at.m, at.id
  if what == 'merge' then
    if redis.call('HGET', MERGE, text) == id and (not at.stored or m.key .. '\0' .. m.merge ~= text) then
      fault('merge', nil, at.stored and 'it is not what the message says' or 'its message is not there', {scope = text})
    end
  elseif what == 'index' then
    local is_other = at.stored and m.has_meta and m.key .. '\0' .. id ~= text
    if (is_other or not at.stored) and redis.call('ZSCORE', BYKEY, text) then
      fault('index', nil, is_other and 'its key is another one' or 'its message is not there', {indexed = text})
    end
  elseif not g or is_dropping(g) then
    return
  elseif what == 'holder' then
    local places = at.copies[g.name] or {}
    -- One whose payload is gone lets its key go when it is removed.
    local lives = #places > 0 and places[1].kind ~= 'lane' and (m.key == text or at.stored and not m.has_meta)
    if not lives and redis.call('HGET', g.holder, text) == id then
      fault('key', g, 'its holder is not there', {mend = 'release', key = text})
    end
  elseif what == 'lane' then
    local key = string.match(text, '^([^%z]*)%z')
    if key and redis.call('ZSCORE', g.lane, text) and redis.call('HEXISTS', g.holder, key) == 0 then
      fault('key', g, 'its messages are parked behind nobody', {mend = 'release', key = key})
    end
  elseif what == 'dead' or what == 'notices' then
    local is_garbage = not at.stored or redis.call('ZSCORE', g.garbage, id)
    if not is_garbage and what == 'dead' and redis.call('HEXISTS', g.dead, id) == 1 then
      fault('garbage', g, 'it has a dead record and is not in garbage', {drop = what})
    elseif not is_garbage and what == 'notices' and redis.call('ZSCORE', g.notices, id) then
      fault('garbage', g, 'it has a notice and is not in garbage', {drop = what})
    end
  elseif what == 'pending' then
    if not read_entry(g.ready, text) and entry_kind(g, text) == 'in_flight' then
      fault('entry', g, 'entry ' .. text .. ' is pending and not on the stream', {hollow = text})
    end
  end
end

-- What is wrong with a message: a list of faults, each with its code, group or nil, text, and what its mend needs.
local function judge(at)
  local m, faults = at.m, {}
  local function fault(code, g, text, more)
    local f = more or {}
    f.code, f.g, f.text = code, g, text
    faults[#faults + 1] = f
  end
  if not at.stored then
    local rest = leftovers(at.id)
    if #at.all > 0 then
      fault('ghost', #at.all == 1 and at.all[1].g or nil, 'in ' .. describe(at.all))
    elseif rest ~= '' then
      fault('leftover', nil, rest)
    end
  else
    local twice = #at.waiting > 1 or #at.waiting > 0 and at.groups > 0
    for _, g in ipairs(groups) do
      twice = twice or #(at.copies[g.name] or {}) > 1
    end
    local owes = size.left > 0 and tonumber(redis.call('HGET', LEFT, at.id))
    if #at.all == 0 then
      fault('orphan', nil, owes and owes .. ' groups owe it' or 'nothing refers to it')
    elseif twice then
      fault('twice', nil, 'in ' .. describe(at.all))
    end
    if at.groups > 0 and (owes or 1) ~= at.groups or at.groups == 0 and #at.waiting > 0 and owes then
      fault('left', nil, (owes or 'nothing') .. ' is left, and ' .. at.groups .. ' groups have it')
    end
    for _, place in ipairs(at.all) do
      local g = place.g
      if place.member and not twice and place.member ~= natural(m, place.kind) then
        fault('member', g, 'in ' .. describe({place}) .. ' by another name than its own', {place = place})
      elseif place.kind == 'unheld' and not twice then
        fault('entry', g, 'entry ' .. place.entry .. ' was delivered and nobody holds it', {place = place})
      elseif place.kind == 'garbage' and not twice and not is_dropping(g) and redis.call('HEXISTS', g.dead, at.id) == 0 then
        fault('garbage', g, 'it is in garbage without a dead record', {bare = true})
      elseif (place.kind == 'backlog' or place.entry) and m.key ~= '' and not is_dropping(g)
        and redis.call('HEXISTS', g.holder, m.key) == 0 then
        fault('key', g, 'it is on its way and does not hold its key', {mend = 'hold', key = m.key})
      end
    end
  end
  for _, hint in ipairs(at.hints) do
    judge_hint(at, hint, fault)
  end
  return faults
end

-- A fault as a reply has it.
local function tell(reply, id, f)
  for _, value in ipairs({id, f.code, f.g and f.g.name or '', f.text}) do
    reply[#reply + 1] = value
  end
end
