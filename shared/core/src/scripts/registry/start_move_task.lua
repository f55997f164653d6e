#!lua flags=allow-oom
-- start_move_task: stores a new message move task, unless another one has been started since the caller read all of them.
--
-- KEYS[1] move_tasks hash    id of a task -> its state; "<id>:stop" -> 1; ":starts" -> the number of tasks ever started
-- ARGV[1] id      text    the task
-- ARGV[2] state   text    its state
-- ARGV[3] starts  count   the number of starts that the caller read
--
-- Returns 'started'; 'other' if the number of starts has changed.
-- Cost O(1).
-- Safe to repeat.
local MOVE_TASKS = KEYS[1]
local id, state, starts = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('HEXISTS', MOVE_TASKS, id) == 0 then
  if (tonumber(redis.call('HGET', MOVE_TASKS, ':starts')) or 0) ~= starts then
    return {'other'}
  end
  redis.call('HSET', MOVE_TASKS, id, state)
  redis.call('HINCRBY', MOVE_TASKS, ':starts', 1)
end
return {'started'}
