-- Shared by all scripts: `scripts.rs` inserts this file after the first line of each.

-- Returns the time in ms, and the µs since that ms began: Redis's clock, or a test's virtual clock. It hides a backward
-- step of up to a second by returning the last time seen. It accepts a larger one, because waiting it out would stop all
-- delivery.
local function clock(virtual, last_time)
  local now, us = tonumber(virtual), 0
  if now == 0 then
    local time = redis.call('TIME')
    us = time[2] % 1000
    now = time[1] * 1000 + (time[2] - us) / 1000
  end
  local last = tonumber(last_time) or 0
  if now < last and last - now <= 1000 then
    return last, 0
  end
  return now, us
end

-- Formats a whole number as an argument. Redis would format a Lua number with 17 digits of precision, which takes
-- longer than all other work on the argument.
local function whole(number)
  return string.format('%d', number)
end

-- Returns the due time for a caller's number: a delay in ms, or the negative of an instant. A past instant becomes now.
local function due_at(when, now)
  when = tonumber(when)
  if when >= 0 then
    return now + when
  end
  return math.max(-when, now)
end

-- Wakes the mover, but only for something due before the time at which it looks again by itself (`alarm`).
local function wake(channel, stats, alarm, due)
  if due < (tonumber(alarm) or math.huge) then
    redis.call('HSET', stats, 'alarm', due)
    redis.call('SPUBLISH', channel, due)
  end
end

-- Parses an `attempts` value. Returns the attempts made, the crashes since the last handler ended, and the last error with
-- the last attempts behind it (see `attempts.lua`). Then the due time of the next attempt, or nil if the zset that has the
-- copy has it. Without a value: 0, 0, ''.
local function read_attempts(value)
  local attempts, crashes, due, error = string.match(value or '', '^(%d+) (%d+)@?(%d*) (.*)$')
  return tonumber(attempts) or 0, tonumber(crashes) or 0, error or '', tonumber(due)
end

-- Stores what read_attempts reads, or deletes it if there is nothing to store.
local function write_attempts(hash, id, attempts, crashes, error, due)
  if attempts > 0 or crashes > 0 or error ~= '' or due then
    redis.call('HSET', hash, id, attempts .. ' ' .. crashes .. (due and '@' .. whole(due) or '') .. ' ' .. error)
  else
    redis.call('HDEL', hash, id)
  end
end

-- Returns the fields of a stream entry by name, or nil if the entry is gone.
local function read_entry(stream, entry)
  local found = redis.call('XRANGE', stream, entry, entry)[1]
  if not found then
    return nil
  end
  local fields = {}
  for i = 1, #found[2], 2 do
    fields[found[2][i]] = found[2][i + 1]
  end
  return fields
end

-- Returns the fields that read_entry reads, for XADD. Omits the attempt number of a first attempt, zero crashes, no expiry,
-- and the time of release without one.
local function write_fields(id, due, attempts, crashes, lapses, released)
  local fields = {'i', id, 'd', due}
  local function add(name, value)
    fields[#fields + 1], fields[#fields + 2] = name, value
  end
  if attempts > 0 then
    add('a', attempts + 1)
  end
  if crashes > 0 then
    add('c', crashes)
  end
  if lapses < math.huge then
    add('x', whole(lapses))
  end
  if released then
    add('r', released)
  end
  return unpack(fields)
end

-- Puts a message into garbage, and into `garbage_hook` if the group has enabled its garbage hook.
local function put_in_garbage(garbage, info, hooks, id, now, reason, attempts, error)
  redis.call('HSET', info, id, reason .. ' ' .. attempts .. ' ' .. error)
  redis.call('ZADD', garbage, now, id)
  if hooks then
    redis.call('ZADD', hooks, now, id)
  end
end

-- Returns for each id whether it is stored. Ids made by Lisa are new except for repeats, so one HMGET is cheapest. But
-- HMGET reads the record of a stored id: with ids of their own, senders could keep Redis busy by naming large messages
-- repeatedly. So a caller's ids are checked one by one.
local function are_stored(payload, ids, has_own)
  if not has_own then
    return redis.call('HMGET', payload, unpack(ids))
  end
  local stored = {}
  for i, id in ipairs(ids) do
    stored[i] = redis.call('HEXISTS', payload, id) == 1
  end
  return stored
end

-- Parses `index:score` pairs into a table of scores by index.
local function scores_by_index(text)
  local scores = {}
  for index, score in string.gmatch(text, '(%d+):(%d+)') do
    scores[tonumber(index)] = tonumber(score)
  end
  return scores
end

-- Returns the lowest score of a tombstone that is not older than the dedup window.
local function oldest_tombstone(now, dedup)
  return (now - dedup) * 4
end

-- Writes the tombstone of a message that ended. Codes: 0 acked, 1 cancelled, 2 merged, 3 purged or expired.
local function entomb(tomb, id, now, code)
  redis.call('ZADD', tomb, whole(now * 4 + code), id)
end

-- Returns the tombstone's code of a message that is not stored, or -1.
local function end_of(tomb, id)
  local score = redis.call('ZSCORE', tomb, id)
  return score and tonumber(score) % 4 or -1
end
