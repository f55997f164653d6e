-- What several scripts share; put behind the first line of each script that asks for it.

-- The time in ms: Redis's clock, or a test's virtual one. Never runs back: a step of up to a second
-- is held at the last time seen; a larger one is taken, as waiting it out would stop the relay.
local function clock(virtual, last_time)
  local now = tonumber(virtual)
  if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  local last = tonumber(last_time) or 0
  if now < last and last - now <= 1000 then
    return last
  end
  return now
end

-- A whole number as an argument. Redis, handed the number, would print it with 17 digits of precision,
-- which takes longer than all the rest of the argument.
local function whole(number)
  return string.format('%d', number)
end

-- A due time from a caller's number: a delay in ms, or the negative of an instant.
local function due_at(when, now)
  when = tonumber(when)
  if when >= 0 then
    return now + when
  end
  return math.max(-when, now)
end

-- Wakes the mover, but only for something due before the time at which it looks again by itself.
local function wake(channel, stats, alarm, due)
  if due < (tonumber(alarm) or math.huge) then
    redis.call('HSET', stats, 'alarm', due)
    redis.call('SPUBLISH', channel, due)
  end
end

-- What an `attempts` value says: attempts made, crashes since, the last error; 0, 0, '' if there is none.
local function read_attempts(value)
  local attempts, crashes, error = string.match(value or '', '^(%d+) (%d+) (.*)$')
  return tonumber(attempts) or 0, tonumber(crashes) or 0, error or ''
end

-- Remembers what read_attempts reads; nothing if there is nothing.
local function write_attempts(hash, id, attempts, crashes, error)
  if attempts > 0 or crashes > 0 then
    redis.call('HSET', hash, id, attempts .. ' ' .. crashes .. ' ' .. error)
  else
    redis.call('HDEL', hash, id)
  end
end

-- The fields of a stream entry by name, or nil if the entry is gone.
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

-- The fields that read_entry reads. The first attempt, no crash and no expiry go without saying.
local function write_fields(id, due, attempts, crashes, lapses)
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
  return unpack(fields)
end

-- Puts a message into garbage; and into `notices`, if the group has a hook that asks for it.
local function bury(garbage, dead, notices, id, now, reason, attempts, error)
  redis.call('HSET', dead, id, reason .. ' ' .. attempts .. ' ' .. error)
  redis.call('ZADD', garbage, now, id)
  if notices then
    redis.call('ZADD', notices, now, id)
  end
end

-- Says for each of some ids whether it is stored. Ids that Lisa made are new, but for repeats, so one request is cheapest. It
-- gives the record of a stored one: whoever may send could keep Redis busy by naming large messages again and again.
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

-- The scores in a text of pairs `index:score`, by their indexes.
local function scores_by_index(text)
  local scores = {}
  for index, score in string.gmatch(text, '(%d+):(%d+)') do
    scores[tonumber(index)] = tonumber(score)
  end
  return scores
end

-- The lowest score of a tombstone that is not older than the dedup window.
local function oldest_tombstone(now, dedup)
  return (now - dedup) * 4
end

-- Remembers how a message ended: 0 acked, 1 cancelled, 2 merged, 3 purged or expired.
local function entomb(tomb, id, now, code)
  redis.call('ZADD', tomb, whole(now * 4 + code), id)
end

-- How an unknown message ended: its tombstone's code, or -1.
local function end_of(tomb, id)
  local score = redis.call('ZSCORE', tomb, id)
  return score and tonumber(score) % 4 or -1
end
