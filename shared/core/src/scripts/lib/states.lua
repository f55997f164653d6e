-- Shared by the scripts of the doctor: finds all states of one message at one instant, and what is wrong with them.
--
-- A hint says where a walk saw something of a message: '<what>:<group> <text>'. The group is empty for structures that the
-- groups share. Members that the message would not have according to its `meta` are found only through hints. So are
-- stream entries, except those after the tail of the stream, which is where the walk of that stream ended.
local TAIL = math.ceil(200 / math.max(#groups, 1))

local by_name = {}
for _, g in ipairs(groups) do
  by_name[g.name] = g
end
-- While a group is being dropped, its structures are partly removed, and nothing succeeds the holder of an ordering key.
local function is_dropping(g)
  return conf['retiring:' .. g.name] == 'drop'
end

-- Collects the entries after the tail of a group's stream, by message id, because the walk did not see them.
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
-- Parses '<group> <last entry or ->' for each stream that was walked, or '?' if none was.
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

-- Returns the state of a group's entry: 'in_flight', 'ready', or 'unheld' if it was delivered but no consumer holds it.
local function entry_kind(g, entry)
  local held = redis.pcall('XPENDING', g.ready, g.name, entry, entry, 1)
  if not held.err and #held > 0 then
    return 'in_flight'
  end
  return not held.err and is_delivered(g, entry) and 'unheld' or 'ready'
end

-- Returns the member under which a message belongs in a zset.
local function natural(m, kind)
  if kind == 'backlog' then
    return backlog_member(m)
  elseif kind == 'parked' then
    return parked_member(m)
  elseif kind == 'garbage' then
    return m.id
  end
  return member(m)
end

-- Extracts a message id from a member of a zset, a field of a hash, or that field's value.
local function id_in(what, field, value)
  if what == 'waiting' or what == 'retry' then
    return id_of(field)
  elseif what == 'backlog' then
    return string.sub(field, 27)
  elseif what == 'parked' then
    return string.match(field, '^[^%z]*%z' .. string.rep('%d', 26) .. '(.*)$') or ''
  elseif what == 'index' then
    return string.match(field, '^[^%z]*%z(.*)$') or ''
  elseif what == 'holder' or what == 'merge' then
    return value
  end
  return field
end

local function split_hint(hint)
  local what, name, text = string.match(hint, '^([%l_]+):(%S*) (.*)$')
  return what, by_name[name], text
end

local ZSETS = {retry = true, backlog = true, parked = true, garbage = true}
-- Finds all states of a message: `waiting`, a list of states; `copies`, such a list for each group that has any; and
-- `groups`, the number of those groups.
local function look(id, hints, is_stored)
  local m = message(id)
  local at = {id = id, m = m, hints = hints, waiting = {}, copies = {}, groups = 0, all = {}}
  at.stored = is_stored or redis.call('HEXISTS', PAYLOAD, id) == 1
  -- Only hints can lead to a state that was already checked.
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
  local function add(state)
    at.all[#at.all + 1] = state
    if not state.g then
      table.insert(at.waiting, state)
    else
      local copies = at.copies[state.g.name]
      if not copies then
        copies = {}
        at.copies[state.g.name] = copies
        at.groups = at.groups + 1
      end
      copies[#copies + 1] = state
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
    if g.parked_count > 0 and m.key ~= '' then
      ask('parked', g, g.parked, parked_member(m))
    end
    if g.garbage_count > 0 then
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

local function describe(states)
  local words = {}
  for _, state in ipairs(states) do
    words[#words + 1] = state.g and state.kind .. ':' .. state.g.name or state.kind
  end
  return table.concat(words, ', ')
end

-- Lists what remains of a message that is not stored.
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
      ask(g.garbage_info, 'garbage_info:' .. g.name)
      if redis.call('ZSCORE', g.garbage_hook, id) then
        found[#found + 1] = 'garbage_hook:' .. g.name
      end
    end
  end
  return table.concat(found, ', ')
end

-- Finds the faults that only a hint leads to: pointers without a valid target.
local function judge_hint(at, hint, fault)
  local what, g, text = split_hint(hint)
  local m, id = at.m, at.id
  if what == 'merge' then
    if redis.call('HGET', MERGE, text) == id and (not at.stored or m.key .. '\0' .. m.merge ~= text) then
      fault('merge', nil, at.stored and 'it differs from the message' or 'its message does not exist', {scope = text})
    end
  elseif what == 'index' then
    local is_other = at.stored and m.has_meta and m.key .. '\0' .. id ~= text
    if (is_other or not at.stored) and redis.call('ZSCORE', BYKEY, text) then
      fault('index', nil, is_other and 'its key differs' or 'its message does not exist', {indexed = text})
    end
  elseif not g or is_dropping(g) then
    return
  elseif what == 'holder' then
    local states = at.copies[g.name] or {}
    -- A message whose payload is gone releases its key when it is removed.
    local lives = #states > 0 and states[1].kind ~= 'parked' and (m.key == text or at.stored and not m.has_meta)
    if not lives and without(holder(g, text), id) then
      fault('key', g, 'its holder does not exist', {repair = 'release', key = text})
    end
  elseif what == 'parked' then
    local key = string.match(text, '^([^%z]*)%z')
    if key and redis.call('ZSCORE', g.parked, text) and redis.call('HEXISTS', g.holder, key) == 0 then
      fault('key', g, 'its messages are parked without a holder', {repair = 'release', key = key})
    end
  elseif what == 'garbage_info' or what == 'garbage_hook' then
    local is_garbage = not at.stored or redis.call('ZSCORE', g.garbage, id)
    if not is_garbage and what == 'garbage_info' and redis.call('HEXISTS', g.garbage_info, id) == 1 then
      fault('garbage', g, 'it has garbage_info and is not in garbage', {drop = what})
    elseif not is_garbage and what == 'garbage_hook' and redis.call('ZSCORE', g.garbage_hook, id) then
      fault('garbage', g, 'it has a pending garbage hook and is not in garbage', {drop = what})
    end
  elseif what == 'pending' then
    if not read_entry(g.ready, text) and entry_kind(g, text) == 'in_flight' then
      fault('entry', g, 'entry ' .. text .. ' is pending and not on the stream', {hollow = text})
    end
  end
end

-- Returns the faults of a message: a list, each with its code, group or nil, text, and what its repair needs.
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
    for _, state in ipairs(at.all) do
      local g = state.g
      if state.member and not twice and state.member ~= natural(m, state.kind) then
        fault('member', g, 'in ' .. describe({state}) .. ' under a name that is not its own', {state = state})
      elseif state.kind == 'unheld' and not twice then
        fault('entry', g, 'entry ' .. state.entry .. ' was delivered and is not pending', {state = state})
      elseif state.kind == 'garbage' and not twice and not is_dropping(g) and redis.call('HEXISTS', g.garbage_info, at.id) == 0 then
        fault('garbage', g, 'it is in garbage without garbage_info', {bare = true})
      elseif (state.kind == 'backlog' or state.entry) and m.key ~= '' and not is_dropping(g)
        and redis.call('HEXISTS', g.holder, m.key) == 0 then
        fault('key', g, 'it was released and does not hold its key', {repair = 'hold', key = m.key})
      end
    end
  end
  for _, hint in ipairs(at.hints) do
    judge_hint(at, hint, fault)
  end
  return faults
end

-- Appends a fault to a reply.
local function tell(reply, id, f)
  for _, value in ipairs({id, f.code, f.g and f.g.name or '', f.text}) do
    reply[#reply + 1] = value
  end
end
