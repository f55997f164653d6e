#!lua flags=allow-oom
-- note_counts: keeps the newest counts of topics, so that a reader finds those of all topics in one key.
--
-- KEYS[1] snapshot hash    topic -> "<ms> <counts>", and ":<manager>" -> the time of its last complete run, ms
-- KEYS[2] topics   hash    registered topics
-- KEYS[3] managers zset    manager -> end of its lease, ms
-- ARGV[1] manager  name    the caller
-- ARGV[2] complete flag    1 if the run of the caller is over and has read each of its topics
-- ARGV[3] entries  list    up to 100 pairs: a topic and its value; or a field that may be left over, and an empty value
--
-- Returns 'noted', and the number of fields that were written or removed.
-- Cost O(entries).
-- Safe to repeat. Counts that are older than those stored are left out, and so are those of an unregistered topic.
local SNAPSHOT, TOPICS, MANAGERS = KEYS[1], KEYS[2], KEYS[3]
local manager, complete = ARGV[1], ARGV[2] == '1'

local now, noted = clock(0), 0
-- A time far ahead was recorded before the clock was set back.
local newest = now + 60000
local function is_owned(field)
  local of = string.match(field, '^:(.*)$')
  if of then
    return of == manager or (tonumber(redis.call('ZSCORE', MANAGERS, of)) or 0) > now
  end
  return redis.call('HEXISTS', TOPICS, field) == 1
end
for i = 3, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  local time = tonumber(string.match(value, '^%d+')) or 0
  if not is_owned(field) then
    noted = noted + redis.call('HDEL', SNAPSHOT, field)
  elseif time > 0 then
    local stored = tonumber(string.match(redis.call('HGET', SNAPSHOT, field) or '', '^%d+')) or 0
    if time > stored or stored > newest then
      redis.call('HSET', SNAPSHOT, field, value)
      noted = noted + 1
    end
  end
end
if complete then
  redis.call('HSET', SNAPSHOT, ':' .. manager, whole(now))
end
return {'noted', noted}
