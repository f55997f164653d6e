#!lua flags=allow-oom
-- reclaim: moves deliveries whose lease (visibility timeout) has expired into retry or garbage.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] lease    ms      idle time after which a delivery is reclaimed; idle times are always on Redis's clock
-- ARGV[5] items    triples entry id, delay in ms before the next attempt, max_attempts; at most 50
-- The last of KEYS is `failures`, which gets the failed attempts.
--
-- Returns 'reclaimed', then for each item its outcome (retry, garbage, expired, lost, kept, held) and a time.
-- Cost O(n log N).
-- Safe to repeat: a reclaimed entry is 'kept' the second time, because it is no longer pending. One that is 'held' is not
-- idle any more until its lease is over, or for a lease of the topic.
--
-- Each message that a dead process held gets one more crash and comes again immediately, with the same due time. Only a marked
-- one (delivery count above 1) is charged an attempt, and then waits as its retry policy says. A delivery count above 2 is the
-- end of the lease of a delivery that a gateway settles, in ms. It is charged then, without a crash.
local g, lease, first = read_sizes(groups[tonumber(ARGV[3])]), tonumber(ARGV[4]), 5

local reply = {'reclaimed'}
local function answer(outcome, time)
  reply[#reply + 1] = outcome
  reply[#reply + 1] = time
end

for i = first, #ARGV, 3 do
  local entry, delay, max_attempts = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local pending = redis.call('XPENDING', g.ready, g.name, 'IDLE', lease, entry, entry, 1)[1]
  if not pending then
    answer('kept', now)
  elseif pending[4] > 2 and pending[4] > now then
    local idle = whole(math.max(0, lease - (pending[4] - now)))
    redis.call('XCLAIM', g.ready, g.name, pending[2], 0, entry, 'IDLE', idle, 'JUSTID')
    answer('held', now)
  else
    local fields = read_entry(g.ready, entry)
    local id = fields and fields.i
    redis.call('XACK', g.ready, g.name, entry)
    redis.call('XDEL', g.ready, entry)
    g.stream = g.stream - 1
    if not id then
      count('lost:' .. g.name)
      answer('lost', now)
    elseif redis.call('HEXISTS', PAYLOAD, id) == 0 then
      end_copy(g, message(id), 'lost')
      release(g, message(id))
      answer('lost', now)
    else
      local m = message(id)
      local is_marked, is_pulled = pending[4] > 1, pending[4] > 2
      local attempts, crashes, last_error = read_attempts(g.tried > 0 and redis.call('HGET', g.attempts, id))
      local attempt, time = attempts + 1, now
      if is_marked then
        attempts, time = attempts + 1, now + delay
      end
      count('reclaimed:' .. g.name)
      local error = is_pulled and 'not settled before its lease ended' or 'the lease of ' .. pending[2] .. ' ran out'
      error = record_attempt(last_error, 'lease_expired', pending[2], error)
      if is_marked and attempts >= max_attempts then
        count('exhausted:' .. g.name)
        move_to_garbage(g, m, 'exhausted', attempts, error)
        answer('garbage', now)
      elseif time >= lapse_in(g, m) then
        answer(lapse_before(g, m, attempts, error), now)
      else
        local due = not is_marked and tonumber(fields.d) or nil
        come_again(g, m, time, due, attempts, is_pulled and crashes or crashes + 1, error)
        answer('retry', time)
      end
      note_failure(g, id, attempt, error, reply[#reply - 1], reply[#reply])
    end
  end
end
finish()
return reply
