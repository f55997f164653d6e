#!lua flags=allow-oom
-- clean: drops tombstones older than the dedup window, and entries that nothing refers to.
--
-- KEYS[1] stats    hash    counters, last_time, alarm
-- KEYS[2] payload  hash    id -> record
-- KEYS[3] ready    stream  one entry a delivery
-- KEYS[4] retry    zset    id -> time of the next attempt
-- KEYS[5] attempts hash    id -> attempts, crashes, last error
-- KEYS[6] tomb     zset    ended ids
-- KEYS[7] wake     channel the mover listens on
-- ARGV[1] now      ms      virtual time of a test, 0 for Redis's clock
-- ARGV[2] group    name    consumer group
-- ARGV[3] window   ms      how long ended ids are remembered
-- ARGV[4] after    entry   look at entries after this one; '-' for the first
-- ARGV[5] batch    count   most tombstones and entries to look at, 1 to 500
--
-- Returns 'cleaned', tombstones dropped, entries recovered, entries lost, 1 if more tombstones are
--   old, the last entry looked at ('-' once the end was reached).
-- Cost O(n log N).
-- Safe to repeat.
--
-- An entry that was delivered and is pending with nobody lost its consumer by force (XGROUP
-- DELCONSUMER, a script cut short). No one would ever see it again, so its message goes to retry.
local STATS, PAYLOAD, READY, RETRY, ATTEMPTS, TOMB, WAKE =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local virtual, group, window = ARGV[1], ARGV[2], tonumber(ARGV[3])
local after, batch = ARGV[4], tonumber(ARGV[5])

local stats = redis.call('HMGET', STATS, 'last_time', 'alarm')
local now = clock(virtual, stats[1])
-- A wrong type must show before the first write: nothing is rolled back.
redis.call('HLEN', PAYLOAD)
local length = redis.call('XLEN', READY)
redis.call('ZCARD', RETRY)
redis.call('HLEN', ATTEMPTS)

local old = redis.call(
  'ZRANGE', TOMB, '-inf', '(' .. string.format('%.0f', (now - window) * 4), 'BYSCORE', 'LIMIT', 0, batch)
if #old > 0 then
  redis.call('ZREM', TOMB, unpack(old))
end

local delivered
if length > 0 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', READY)) do
    local fields = {}
    for i = 1, #info, 2 do
      fields[info[i]] = info[i + 1]
    end
    if fields.name == group then
      delivered = fields['last-delivered-id']
    end
  end
end
local recovered, lost, last = 0, 0, '-'
if delivered then
  local from = after == '-' and '-' or '(' .. after
  local entries = redis.call('XRANGE', READY, from, delivered, 'COUNT', batch)
  for _, entry in ipairs(entries) do
    if #redis.call('XPENDING', READY, group, entry[1], entry[1], 1) == 0 then
      local id = read_entry(READY, entry[1]).i
      if id and redis.call('HEXISTS', PAYLOAD, id) == 1 then
        redis.call('ZADD', RETRY, now, id)
        recovered = recovered + 1
      else
        if id then
          redis.call('HDEL', ATTEMPTS, id)
        end
        lost = lost + 1
      end
      redis.call('XDEL', READY, entry[1])
    end
  end
  if #entries == batch then
    last = entries[#entries][1]
  end
end
if lost > 0 then
  redis.call('HINCRBY', STATS, 'lost:' .. group, lost)
end
if recovered > 0 then
  redis.call('HINCRBY', STATS, 'recovered:' .. group, recovered)
  wake(WAKE, STATS, stats[2], now)
end
return {'cleaned', #old, recovered, lost, #old == batch and 1 or 0, last}
