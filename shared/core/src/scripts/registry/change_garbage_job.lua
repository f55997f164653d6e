#!lua flags=allow-oom
-- change_garbage_job: replaces the state of a garbage job, unless another process has changed it since the caller read it.
--
-- KEYS[1] garbage_jobs hash    id of a job -> its state
-- ARGV[1] id       text    the job
-- ARGV[2] before   text    the state that the caller read; empty for a new job
-- ARGV[3] after    text    the new state; empty removes the job
-- ARGV[4] most     count   the largest number of jobs
--
-- Returns 'stored'; 'other' if the state is another one; 'full' if a new job would be one too many.
-- Cost O(1).
-- Safe to repeat: the second time the state is another one.
local GARBAGE_JOBS = KEYS[1]
local id, before, after, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

if (redis.call('HGET', GARBAGE_JOBS, id) or '') ~= before then
  return {'other'}
end
if after == '' then
  redis.call('HDEL', GARBAGE_JOBS, id)
elseif before == '' and redis.call('HLEN', GARBAGE_JOBS) >= most then
  return {'full'}
else
  redis.call('HSET', GARBAGE_JOBS, id, after)
end
return {'stored'}
