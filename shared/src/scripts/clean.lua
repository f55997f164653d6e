#!lua flags=allow-oom
-- clean: drops old tombstones and what nothing refers to, retires groups of instances that are gone, and
-- makes a topic plain again that uses no feature any more.
--
-- ARGV[3] group    number  consumer group, as its place among all groups, from 1
-- ARGV[4] window   ms      how long ended ids are remembered
-- ARGV[5] after    entry   look at entries after this one; '-' for the first
-- ARGV[6] batch    count   most tombstones and entries to look at, 1 to 200
--
-- Returns 'cleaned', tombstones dropped, entries recovered, entries lost, 1 if more tombstones are
--   old, the last entry looked at ('-' once the end was reached), drain or drop if the group is retiring, else ''.
-- Cost O(n log N).
-- Safe to repeat.
--
-- An entry that was delivered and is pending with nobody lost its consumer by force (XGROUP
-- DELCONSUMER, a script cut short). No one would ever see it again, so its message goes to retry.
local g, keep, after, batch = groups[tonumber(ARGV[3])], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])

survey_all()
local lease = tonumber(redis.call('HGET', CONF, 'instance:' .. g.name))
local old = redis.call(
  'ZRANGE', TOMB, '-inf', '(' .. string.format('%.0f', (now - keep) * 4), 'BYSCORE', 'LIMIT', 0, batch)
if #old > 0 then
  redis.call('ZREM', TOMB, unpack(old))
end

local delivered = g.stream > 0 and last_delivered(g)
local recovered, lost, last = 0, 0, '-'
if delivered then
  local from = after == '-' and '-' or '(' .. after
  local entries = redis.call('XRANGE', g.ready, from, delivered, 'COUNT', batch)
  for _, entry in ipairs(entries) do
    if #redis.call('XPENDING', g.ready, g.name, entry[1], entry[1], 1) == 0 then
      local id = read_entry(g.ready, entry[1]).i
      redis.call('XDEL', g.ready, entry[1])
      g.stream = g.stream - 1
      if id and redis.call('HEXISTS', PAYLOAD, id) == 1 then
        redis.call('ZADD', g.retry, now, member(message(id)))
        count('recovered:' .. g.name)
        recovered = recovered + 1
        look_at(now)
      else
        if id then
          end_copy(g, message(id), 'lost')
          release(g, message(id))
        else
          count('lost:' .. g.name)
        end
        lost = lost + 1
      end
    end
  end
  if #entries == batch then
    last = entries[#entries][1]
  end
end
if lease and lease < now and not conf['retiring:' .. g.name] then
  conf['retiring:' .. g.name] = 'drop'
  redis.call('HSET', CONF, 'retiring:' .. g.name, 'drop', 'class', 'full')
end
if size.meta == 0 and stats[4] then
  -- Whatever was lost: a message without options has no rank.
  count('ranked', -stats[4])
end
finish()

local used = size.meta + size.merge + size.left + g.gated + g.parked + g.held
if conf.class == 'full' and #groups == 1 and used == 0 and redis.call('HEXISTS', CONF, 'features') == 0
  and not conf['paused:' .. g.name] and not conf['retiring:' .. g.name] then
  redis.call('HSET', CONF, 'class', 'plain')
end
return {'cleaned', #old, recovered, lost, #old == batch and 1 or 0, last, conf['retiring:' .. g.name] or ''}
