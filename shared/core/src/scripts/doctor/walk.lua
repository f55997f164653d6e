#!lua flags=no-writes
-- walk: looks through a page of one structure and names suspects. It does not know the entries of the streams.
--
-- ARGV[3] what     name    payload, meta, left, merge, index or waiting; or, with ':' and a group, retry, backlog, parked,
--                          garbage, attempts, garbage_info, garbage_hook or holder
-- ARGV[4] cursor   text    where to continue, as the previous page returned it; 0 for the first
-- ARGV[5] count    count   about how many to look at, 1 to 200
--
-- Returns 'walked', the next cursor (0 at the end), how many were seen, the bytes of all that was read; then for each
--   suspect two: its id, and a hint at what led to it or ''.
-- Cost O(n log N) for each group.
-- Safe to repeat.
local kind, name = string.match(ARGV[3], '^([%l_]+):?(.*)$')
local cursor, rest = string.match(ARGV[4], '^(%d+):?(%d*)$')
local most = tonumber(ARGV[5])

read_all_sizes()
local g = by_name[name]
local of_shard = {payload = PAYLOAD, meta = META, left = LEFT, merge = MERGE, index = BYKEY, waiting = WAITING}
local key = of_shard[kind] or g and g[kind]
if not key then
  return {'walked', '0', 0, 0}
end
-- Structures that point at a message, and may be wrong even if the message exists.
local POINTERS = {merge = true, index = true, parked = true, holder = true, garbage_info = true, garbage_hook = true}
local is_zset = kind == 'waiting' or kind == 'index' or kind == 'garbage_hook' or ZSETS[kind]
local page
if is_zset then
  page = redis.call('ZSCAN', key, cursor, 'COUNT', most)
else
  page = redis.call('HSCAN', key, cursor, 'COUNT', most)
end
local found, next = page[2], page[1]
-- Redis returns a small structure as one page, whatever the count. It is looked at in parts, from its end, because removals
-- in the meantime only move the others toward its beginning.
local from, to = 1, #found / 2
if cursor == '0' and next == '0' then
  to = math.min(tonumber(rest) or to, to)
  if to > most then
    from = to - most + 1
    next = '0:' .. from - 1
  end
end
local reply = {'walked', next, to - from + 1, 0}

local ids, texts = {}, {}
for i = 2 * from - 1, 2 * to - 1, 2 do
  reply[4] = reply[4] + #found[i] + #found[i + 1]
  local text = id_in(kind, found[i], found[i + 1])
  -- Messages can hold a key together.
  local all = {text}
  if kind == 'holder' and string.find(text, '^ ') then
    all = {}
    for id in string.gmatch(text, '%S+') do
      all[#all + 1] = id
    end
  end
  for _, id in ipairs(all) do
    ids[#ids + 1], texts[#texts + 1] = id, found[i]
  end
end
-- COUNT is only a hint, so a page may be larger.
for i = 1, #ids, 500 do
  prefetch({unpack(ids, i, math.min(i + 499, #ids))})
end
for i, id in ipairs(ids) do
  local text = texts[i]
  local hint, suspect = '', false
  if kind == 'payload' then
    suspect = #judge(look(id, {}, true)) > 0
  else
    hint = kind .. ':' .. name .. ' ' .. text
    suspect = redis.call('HEXISTS', PAYLOAD, id) == 0
    if not suspect and (kind == 'waiting' or ZSETS[kind]) then
      suspect = text ~= natural(message(id), kind)
    end
    if not suspect and POINTERS[kind] then
      judge_hint(look(id, {}), hint, function() suspect = true end)
    end
  end
  if suspect then
    reply[#reply + 1] = id
    reply[#reply + 1] = hint
  end
end
return reply
