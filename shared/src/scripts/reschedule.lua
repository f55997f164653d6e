#!lua flags=allow-oom
-- reschedule: gives a message none of whose copies is on a stream or in garbage another due time.
--
-- ARGV[3] id       text    message id
-- ARGV[4] when     ms      delay, or negative instant
--
-- Returns 'rescheduled' and the new due time; or 'in_flight' (a group has it ready or in flight); or
--   'garbage' (a group gave it up); or 'unknown', its tombstone's code or -1, and the id that it was
--   merged into or ''.
-- Cost O(log N) for each group. Attempts made so far stay counted. It gives up its ordering key until it is due.
-- Safe to repeat: the same due time again, for an instant; a delay counts from the repeat.
local id, when = ARGV[3], ARGV[4]

survey_all()
local due = due_at(when, now)
local m, where, places, buried = find(id)
if where == 'unknown' then
  return {where, ending(id)}
elseif where == 'held' and buried > 0 then
  return {'garbage'}
elseif where == 'in_flight' or where == 'garbage' then
  return {where}
elseif where == 'waiting' then
  if tonumber(m.waiting) ~= due then
    redis.call('ZREM', WAITING, member(m))
    wait_again(m, due, {})
  end
else
  -- What no group has begun with waits again for all of them; else each group has its own next attempt.
  local active, begun = 0, false
  for _, g in ipairs(groups) do
    active = active + (conf['retiring:' .. g.name] and 0 or 1)
  end
  for _, at in ipairs(places) do
    begun = begun or at.zset == 'retry' or (at.g.tried > 0 and redis.call('HEXISTS', at.g.attempts, id) == 1)
    begun = begun or conf['retiring:' .. at.g.name]
    take_out(m, at)
  end
  if begun or #places < active then
    m.due = due
    if m.has_meta then
      m.seq = m.seq > 0 and arrive() or 0
      write_meta(m)
    end
    for _, at in ipairs(places) do
      redis.call('ZADD', at.g.retry, due, member(m))
    end
    look_at(due)
  else
    wait_again(m, due, places)
  end
end
finish()
return {'rescheduled', due}
