#!lua flags=allow-oom
-- settle: ends deliveries that were not acknowledged: retry, defer, reject, hand back, expired, or payload lost.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] items    sixes   entry id, message id, kind (retry, defer, reject, hand_back, expired, lost),
--                          when (delay in ms, or negative instant), max_attempts, error text; at most 50
-- The last of KEYS is `failures`, which gets the failed attempts.
--
-- Returns 'settled', then for each item its outcome (retry, deferred, garbage, expired, lost, stale) and a time.
-- Cost O(n log N).
-- Safe to repeat: the second time all items are stale.
local g, first = read_sizes(groups[tonumber(ARGV[3])]), 4

local reply = {'settled'}
local function answer(outcome, time)
  reply[#reply + 1] = outcome
  reply[#reply + 1] = time
end
-- Schedules the next delivery, unless the message will have lapsed by then. `due` is the due time of its attempt, if that
-- remains the same attempt.
local function again(m, time, due, outcome, attempts, crashes, error)
  if time >= lapse_in(g, m) then
    answer(lapse_before(g, m, attempts, error), now)
    return
  end
  come_again(g, m, time, due, attempts, crashes, error)
  count((outcome == 'retry' and 'retried:' or 'deferred:') .. g.name)
  answer(outcome, time)
end
-- Returns the slot of a handed-back delivery to the group's rate, even if its handler was stopped midway: the message uses
-- a slot again when it is next delivered. The part of the slot that became free since its release is not returned twice.
local function refund(released)
  local tat, rest = used_up_to(g), interval - (now - released)
  if tat > now and rest > 0 then
    redis.call('HSET', STATS, 'tat:' .. g.name, string.format('%.3f', math.max(now, tat - rest)))
  end
end

for i = first, #ARGV, 6 do
  local entry, id, kind = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local when, max_attempts, error = ARGV[i + 3], tonumber(ARGV[i + 4]), ARGV[i + 5]
  local failed = kind == 'retry' or kind == 'reject'
  local consumer = failed and consumer_of(g, entry)
  if redis.call('XACK', g.ready, g.name, entry) == 0 then
    answer('stale', now)
  else
    local fields = not failed and kind ~= 'defer' and read_entry(g.ready, entry)
    local due = fields and tonumber(fields.d)
    redis.call('XDEL', g.ready, entry)
    g.stream = g.stream - 1
    local m = message(id)
    local attempts, crashes, last_error = read_attempts(g.tried > 0 and redis.call('HGET', g.attempts, id))
    if failed then
      error = record_attempt(last_error, kind == 'reject' and 'rejected' or 'failed', consumer, error)
    end
    if redis.call('HEXISTS', PAYLOAD, id) == 0 then
      end_copy(g, m, 'lost')
      release(g, m)
      answer('lost', now)
    elseif kind == 'reject' or (kind == 'retry' and attempts + 1 >= max_attempts) then
      local reason = kind == 'reject' and 'rejected' or 'exhausted'
      count(reason .. ':' .. g.name)
      move_to_garbage(g, m, reason, attempts + 1, error)
      answer('garbage', now)
    elseif kind == 'expired' and (max_lateness or lapse_in(g, m) <= now) then
      answer(lapse_now(g, m, attempts, last_error), now)
    elseif kind == 'retry' then
      -- The handler ended, so the crashes that made the message suspect are forgotten.
      again(m, due_at(when, now), nil, 'retry', attempts + 1, 0, error)
    elseif kind == 'defer' then
      again(m, due_at(when, now), nil, 'deferred', attempts, 0, last_error)
    elseif kind == 'hand_back' then
      if interval and due then
        refund(tonumber(fields.r) or due)
      end
      again(m, due_at(when, now), due, 'deferred', attempts, crashes, last_error)
    else
      -- Reported lost but its payload exists, or reported expired too early: the message comes again immediately.
      again(m, now, due, 'deferred', attempts, crashes, last_error)
    end
    local outcome, time = reply[#reply - 1], reply[#reply]
    if failed and outcome ~= 'lost' then
      note_failure(g, id, attempts + 1, error, outcome, time)
    end
  end
end
finish()
return reply
