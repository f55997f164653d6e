#!lua flags=allow-oom
-- recount: compares the counters with what is there, by the sums that must hold, and corrects them if told so.
--
-- ARGV[3] mend     flag    1 corrects
--
-- Returns 'recounted', then for each difference four: '', code (counters or class), group or '', and what was seen.
-- Cost O(groups), and O(n) for the bytes, which are counted where at most 2000 messages have a meta.
-- Safe to repeat: the second time nothing differs.
--
-- What the sums miss was lost and is counted so; what they did not know of was accepted or moved.
local mend = ARGV[3] == '1'
local MOST = 2000

survey_all()
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
local function missing_of(name, places)
  local missing = total('moved:' .. name) + total('shifted:' .. name) - places
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
local function correct(g, name, places, lost)
  local by = missing_of(name, places)
  if by > 0 then
    off(g, by .. ' more were moved than there are')
    count(lost .. ':' .. name, by)
  elseif by < 0 then
    off(g, -by .. ' more are there than were moved')
    count('moved:' .. name, -by)
  end
end
for _, g in ipairs(groups) do
  correct(g, g.name, g.stream + g.gated + g.parked + g.retries + g.buried, 'lost')
end
-- Groups that are gone, summed up.
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
  used = used + g.gated + g.parked + g.held
end
local misclassed = conf.class == 'plain' and (used > 0 or #groups ~= 1)
if misclassed then
  tell(reply, '', {code = 'class', text = 'it is plain, and holds what needs the general scripts'})
end
if mend then
  if misclassed then
    redis.call('HSET', CONF, 'class', 'full')
  end
  flush()
end
return reply
