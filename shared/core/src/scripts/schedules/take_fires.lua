#!lua flags=allow-oom
-- take_fires: takes the schedules whose message is to be sent now, for one manager. Unless it notes a later time, another
-- manager takes them after the lease.
--
-- KEYS[1] fires                zset    schedule -> the time at which a manager takes it
-- KEYS[2] schedule_definitions hash    schedule -> its definition
-- KEYS[3] schedule_progress    hash    schedule -> "<ms> <version> <rule>": it has fired up to that time, by that rule
-- ARGV[1] most     count   the most schedules to take
-- ARGV[2] bytes    count   the bytes of definitions after which it takes no more
-- ARGV[3] lease    ms      how long no other manager takes them
--
-- Returns 'taken'; the time; that until the next one is to be taken, in ms, -1 if there is none; then for each schedule its name,
-- its definition, the time up to which it has fired, and its version.
-- Cost O(most · log schedules).
-- Safe to repeat: a reply that was lost is a manager that takes them and dies.
local FIRES, SCHEDULE_DEFINITIONS, SCHEDULE_PROGRESS = KEYS[1], KEYS[2], KEYS[3]
local most, bytes, lease = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local now = clock(0)
local reply = {'taken', whole(now), -1}
for _, schedule in ipairs(redis.call('ZRANGE', FIRES, '-inf', whole(now), 'BYSCORE', 'LIMIT', 0, most)) do
  local definition = redis.call('HGET', SCHEDULE_DEFINITIONS, schedule)
  local time, version = string.match(redis.call('HGET', SCHEDULE_PROGRESS, schedule) or '', '^(%d+) (%d+) ')
  if not definition then
    redis.call('ZREM', FIRES, schedule)
  else
    redis.call('ZADD', FIRES, whole(now + lease), schedule)
    time = tonumber(time) or now
    -- The clock was set back since.
    if time > now + 60000 then
      time = now
    end
    for _, value in ipairs({schedule, definition, whole(time), version or '0'}) do
      reply[#reply + 1] = value
    end
    bytes = bytes - #definition
    if bytes <= 0 then
      break
    end
  end
end
local first = redis.call('ZRANGE', FIRES, 0, 0, 'WITHSCORES')
if first[2] then
  reply[3] = math.max(tonumber(first[2]) - now, 0)
end
return reply
