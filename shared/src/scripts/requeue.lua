#!lua
-- requeue: delivers messages in garbage again, with all their attempts before them and no expiry in this group.
--
-- ARGV[3] group    number  consumer group, as its place among all groups, from 1
-- ARGV[4] items    pairs   message id, the garbage time that the caller saw; at most 50
--
-- Returns 'requeued', then for each item its outcome: requeued, lost (no payload), unknown.
-- Cost O(n log N). A message returns to its old position among those of its ordering key.
-- Safe to repeat: a message that came back to garbage since has another time.
local g, first = survey(groups[tonumber(ARGV[3])]), 4

local reply = {'requeued'}
for i = first, #ARGV, 2 do
  local id, time = ARGV[i], tonumber(ARGV[i + 1])
  local outcome = 'unknown'
  if tonumber(redis.call('ZSCORE', g.garbage, id)) == time then
    local m = message(id)
    redis.call('ZREM', g.garbage, id)
    redis.call('HDEL', g.dead, id)
    redis.call('ZREM', g.notices, id)
    if redis.call('HEXISTS', PAYLOAD, id) == 1 then
      outcome = 'requeued'
      count('requeued:' .. g.name)
      if lapse_in(g, m) < math.huge then
        m.exempt = m.exempt .. ' ' .. g.name .. ' '
        write_meta(m)
      end
      if m.key ~= '' then
        -- Those of one key come by their old positions, however many are requeued at once. The mark says that
        -- this is not the time at which they are due again.
        redis.call('HSET', g.attempts, id, '0 0 ')
      end
      redis.call('ZADD', g.retry, m.key ~= '' and m.due or now, member(m))
      look_at(now)
    else
      outcome = 'lost'
      end_copy(g, m, 'lost')
      release(g, m)
    end
  end
  reply[#reply + 1] = outcome
end
finish()
return reply
