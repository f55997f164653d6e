#!lua flags=allow-oom
-- reschedule: changes the due time of a message that has no copy on a stream or in garbage.
--
-- ARGV[3] id       text    message id
-- ARGV[4] when     ms      delay, or negative instant
--
-- Returns 'rescheduled' and the new due time; or 'in_flight' (a group has it ready or in flight);
--   or 'garbage' (a group has it in garbage);
--   or 'unknown', its tombstone's code or -1, and the id that it was merged into or ''.
-- Cost O(log N) for each group. Attempts made so far still count. It releases its ordering key until it is due.
-- Safe to repeat: an instant results in the same due time; a delay counts from the repeat.
local id, when = ARGV[3], ARGV[4]

local m, where, states, in_garbage = locate(id)
if where == 'unknown' then
  return {where, ending(id)}
end
read_all_sizes()
local due = due_at(when, now)
m, where, states, in_garbage = find(id)
if where == 'held' and in_garbage > 0 then
  return {'garbage'}
elseif where == 'in_flight' or where == 'garbage' then
  return {where}
elseif where == 'waiting' then
  if tonumber(m.waiting) ~= due then
    redis.call('ZREM', WAITING, member(m))
    wait_again(m, due, {})
  end
else
  -- A message that no group has begun waits again for all groups. Otherwise each group has its own next attempt.
  local active, begun = 0, false
  for _, g in ipairs(groups) do
    active = active + (conf['retiring:' .. g.name] and 0 or 1)
  end
  for _, at in ipairs(states) do
    begun = begun or at.zset == 'retry' or (at.g.tried > 0 and redis.call('HEXISTS', at.g.attempts, id) == 1)
    begun = begun or conf['retiring:' .. at.g.name]
    take_out(m, at)
  end
  if begun or #states < active then
    m.due = due
    if m.has_meta then
      m.seq = m.seq > 0 and arrive() or 0
      write_meta(m)
    end
    for _, at in ipairs(states) do
      if at.g.tried > 0 then
        local attempts, crashes, error = read_attempts(redis.call('HGET', at.g.attempts, id))
        write_attempts(at.g.attempts, id, attempts, crashes, error)
      end
      redis.call('ZADD', at.g.retry, due, member(m))
    end
    look_at(due)
  else
    wait_again(m, due, states)
  end
end
finish()
return {'rescheduled', due}
