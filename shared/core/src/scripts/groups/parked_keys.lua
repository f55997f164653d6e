#!lua flags=no-writes
-- parked_keys: lists ordering keys that have parked messages, and the message that those wait for.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] after    text    the key after which the list begins; empty for all
-- ARGV[5] limit    count   at most 50 keys
--
-- Returns 'parked_keys', then for each key, in byte order: the key, the number of its parked messages, the due time of the
--   first of them, the id of the holder or '', the holder's state (stream, backlog, retry, garbage, or none if it has none),
--   and a time: of its next attempt, since when it is in garbage, or its due time.
-- Cost O(limit log N): up to 7 commands for each key, however many messages it has.
-- Safe to repeat.
local g, after, limit = read_sizes(groups[tonumber(ARGV[3])]), ARGV[4], tonumber(ARGV[5])

local function state_of(id)
  local m = message(id)
  local retry = redis.call('ZSCORE', g.retry, member(m))
  if retry then
    return 'retry', retry
  end
  local garbage = redis.call('ZSCORE', g.garbage, id)
  if garbage then
    return 'garbage', garbage
  end
  return redis.call('ZSCORE', g.backlog, backlog_member(m)) and 'backlog' or 'stream', m.due
end

local reply = {'parked_keys'}
-- The byte after the NUL that ends a key begins the next key.
local from = after == '' and '-' or '[' .. after .. '\1'
for _ = 1, g.parked_count > 0 and limit or 0 do
  local first = redis.call('ZRANGE', g.parked, from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
  local nul = first and string.find(first, '\0', 1, true)
  if not nul then
    break
  end
  local key = string.sub(first, 1, nul - 1)
  local id = first_holder(g, key)
  local state_, time = 'none', 0
  if id ~= '' then
    state_, time = state_of(id)
  end
  from = '[' .. key .. '\1'
  for _, value in ipairs({
    key, redis.call('ZLEXCOUNT', g.parked, '[' .. key .. '\0', '(' .. key .. '\1'), tonumber(string.sub(first, nul + 1, nul + 14)) or 0,
    id, state_, time,
  }) do
    reply[#reply + 1] = value
  end
end
return reply
