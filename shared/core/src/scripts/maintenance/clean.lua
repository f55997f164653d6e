#!lua flags=allow-oom
-- clean: recovers entries that no consumer holds, retires groups of instances that are gone, and makes a topic plain again
-- that no longer uses a feature.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] after    entry   look at entries after this one; '-' for the first
-- ARGV[5] batch    count   most entries to look at, 1 to 200
--
-- Returns 'cleaned', entries recovered, entries lost, the last entry looked at ('-' after the end of the stream), drain or
--   drop if the group is retiring, else ''.
-- Cost O(n log N).
-- Safe to repeat.
--
-- An entry that was delivered but is not pending lost its consumer by force (XGROUP DELCONSUMER, an interrupted script). No
-- consumer would ever see it again, so its message goes to retry, with the same due time. An entry without a stored
-- message is counted as lost.
local g, after, batch = groups[tonumber(ARGV[3])], ARGV[4], tonumber(ARGV[5])

read_all_sizes()
local lease = tonumber(redis.call('HGET', CONF, 'instance:' .. g.name))

local delivered = g.stream > 0 and last_delivered(g)
local recovered, lost, last = 0, 0, '-'
if delivered then
  local from = after == '-' and '-' or '(' .. after
  local entries = redis.call('XRANGE', g.ready, from, delivered, 'COUNT', batch)
  for _, entry in ipairs(entries) do
    if #redis.call('XPENDING', g.ready, g.name, entry[1], entry[1], 1) == 0 then
      local fields = read_entry(g.ready, entry[1])
      local id = fields.i
      redis.call('XDEL', g.ready, entry[1])
      g.stream = g.stream - 1
      if id and redis.call('HEXISTS', PAYLOAD, id) == 1 then
        redis.call('ZADD', g.retry, math.min(tonumber(fields.d) or now, now), member(message(id)))
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
  redis.call('HSET', CONF, 'retiring:' .. g.name, 'drop', 'class', 'general')
end
if size.meta == 0 and stats[4] then
  -- Whatever was lost, the count is 0: without a meta no message is ranked.
  count('ranked', -stats[4])
end
finish()

local used = size.meta + size.merge + size.left + g.gated + g.parked_count + g.held
if conf.class == 'general' and #groups == 1 and used == 0 and redis.call('HEXISTS', CONF, 'features') == 0
  and not conf['paused:' .. g.name] and not conf['retiring:' .. g.name] then
  redis.call('HSET', CONF, 'class', 'plain')
end
return {'cleaned', recovered, lost, last, conf['retiring:' .. g.name] or ''}
