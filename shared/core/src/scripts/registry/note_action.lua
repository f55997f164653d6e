#!lua flags=allow-oom
-- note_action: adds an action to the audit log. Once the log is full, removes the oldest actions of the authors with the most.
--
-- KEYS[1] audit   stream   actions: via, who, action, …
-- ARGV[1] kept    count    the number of actions to keep; up to a tenth more are stored before any are removed
-- ARGV[2] fields  list     pairs: a field and its value
--
-- Returns 'noted', and the number of actions that were removed.
-- Cost O(1); O(kept) once every kept/10 actions.
-- Safe to repeat, but the log then has the action twice.
local AUDIT = KEYS[1]
local kept = tonumber(ARGV[1])

redis.call('XADD', AUDIT, '*', unpack(ARGV, 2))
if redis.call('XLEN', AUDIT) <= kept * 1.1 then
  return {'noted', 0}
end
local entries, count_of = redis.call('XRANGE', AUDIT, '-', '+'), {}
local function who(entry)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'who' then
      return fields[i + 1]
    end
  end
  return ''
end
for _, entry in ipairs(entries) do
  count_of[who(entry)] = (count_of[who(entry)] or 0) + 1
end
local counts = {}
for _, count in pairs(count_of) do
  counts[#counts + 1] = count
end
table.sort(counts)
-- Authors that have fewer than their share leave the rest of it to the others.
local left, share = kept, 0
for i, count in ipairs(counts) do
  share = math.floor(left / (#counts - i + 1))
  if count > share then
    break
  end
  left = left - count
end
local old = {}
for _, entry in ipairs(entries) do
  local name = who(entry)
  if count_of[name] > math.max(share, 1) and #old < kept then
    count_of[name] = count_of[name] - 1
    old[#old + 1] = entry[1]
  end
end
if #old > 0 then
  redis.call('XDEL', AUDIT, unpack(old))
end
return {'noted', #old}
