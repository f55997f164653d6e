#!lua flags=allow-oom
-- recount: compares the counters with what the shard holds, by the conservation sums, and corrects them on request.
--
-- ARGV[3] repair   flag    1 corrects
--
-- Returns 'recounted', then for each difference four: '', code (counters or class), group or '', and what was seen.
-- Cost O(groups), plus O(n) for `bytes` and `ranked`, which are counted only if at most 2000 messages have a meta.
-- Safe to repeat: the second time nothing differs.
--
-- Messages that the sums expect but the shard does not hold are counted as lost; surplus ones as accepted or moved.
local repair = ARGV[3] == '1'
local MOST = 2000

read_all_sizes()
local totals, field_values = {}, redis.call('HGETALL', STATS)
for i = 1, #field_values, 2 do
  totals[field_values[i]] = tonumber(field_values[i + 1])
end
local function total(what)
  return totals[what] or 0
end
local reply = {'recounted'}
local function off(g, text)
  tell(reply, '', {code = 'counters', g = g, text = text})
end
local function missing_of(name, states)
  local missing = total('moved:' .. name) + total('shifted:' .. name) - states
  for _, ending in ipairs({'acked', 'cancelled', 'expired', 'purged', 'lost', 'dropped'}) do
    missing = missing - total(ending .. ':' .. name)
  end
  return missing
end

local missing = total('accepted') + total('shifted') - size.waiting - total('cancelled') - total('merged') - total('moved')
if missing > 0 then
  off(nil, missing .. ' more were accepted than there are')
  count('moved', missing)
  for _, g in ipairs(groups) do
    if not conf['retiring:' .. g.name] then
      count('moved:' .. g.name, missing)
      count('lost:' .. g.name, missing)
    end
  end
elseif missing < 0 then
  off(nil, -missing .. ' more are there than were accepted')
  count('accepted', -missing)
end
local function correct(g, name, states, lost)
  local by = missing_of(name, states)
  if by > 0 then
    off(g, by .. ' more were moved than there are')
    count(lost .. ':' .. name, by)
  elseif by < 0 then
    off(g, -by .. ' more are there than were moved')
    count('moved:' .. name, -by)
  end
end
for _, g in ipairs(groups) do
  correct(g, g.name, g.stream + g.gated + g.parked_count + g.retries + g.garbage_count, 'lost')
end
-- All removed groups together.
correct(nil, '-', 0, 'dropped')

if size.meta <= MOST then
  local bytes, ranked = 0, 0
  for _, text in ipairs(redis.call('HVALS', META)) do
    local m = read_meta('', text)
    bytes = bytes + m.bytes
    ranked = ranked + (is_ranked(m) and 1 or 0)
  end
  if bytes ~= total('bytes') then
    off(nil, 'the records take ' .. bytes .. ' bytes, and ' .. total('bytes') .. ' are counted')
    count('bytes', bytes - total('bytes'))
  end
  if ranked ~= total('ranked') then
    off(nil, ranked .. ' have a priority or a merge key, and ' .. total('ranked') .. ' are counted')
    count('ranked', ranked - total('ranked'))
  end
end

local used = size.meta + size.merge + size.left
for _, g in ipairs(groups) do
  used = used + g.gated + g.parked_count + g.held
end
local misclassed = conf.class == 'plain' and (used > 0 or #groups ~= 1)
if misclassed then
  tell(reply, '', {code = 'class', text = 'it is plain, and holds what needs the general scripts'})
end
if repair then
  if misclassed then
    redis.call('HSET', CONF, 'class', 'general')
  end
  flush()
end
return reply
