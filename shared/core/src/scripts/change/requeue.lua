#!lua
-- requeue: delivers messages in garbage again, with a fresh count of attempts and no expiry in this group. Keeps their last
-- failed attempts.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] items    pairs   message id, the garbage time that the caller saw; at most 50
--
-- Returns 'requeued', then for each item its outcome: requeued, lost (no payload), unknown.
-- Cost O(n log N). A message with an ordering key returns to its old position in it.
-- Safe to repeat: a message that has returned to garbage since has another garbage time.
local g, first = read_sizes(groups[tonumber(ARGV[3])]), 4

local reply = {'requeued'}
for i = first, #ARGV, 2 do
  local id, time = ARGV[i], tonumber(ARGV[i + 1])
  local outcome = 'unknown'
  if tonumber(redis.call('ZSCORE', g.garbage, id)) == time then
    local m = message(id)
    local error = string.match(redis.call('HGET', g.garbage_info, id) or '', '^%S+ %d+ (.*)$')
    redis.call('ZREM', g.garbage, id)
    redis.call('HDEL', g.garbage_info, id)
    redis.call('ZREM', g.garbage_hook, id)
    if redis.call('HEXISTS', PAYLOAD, id) == 1 then
      outcome = 'requeued'
      count('requeued:' .. g.name)
      if lapse_in(g, m) < math.huge then
        m.exempt = m.exempt .. ' ' .. g.name .. ' '
        write_meta(m)
      end
      -- Messages of one key return to their old order, however many are requeued together. So the score is not the time at
      -- which they are due again.
      local is_keyed = m.key ~= ''
      write_attempts(g.attempts, id, 0, 0, error or '', is_keyed and now or nil)
      redis.call('ZADD', g.retry, is_keyed and m.due or now, member(m))
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
