#!lua flags=allow-oom
-- finish_garbage_hook: removes pending hooks that are done.
--
-- KEYS[1] garbage      zset    id -> time
-- KEYS[2] garbage_hook zset    id -> time from which its hook may run
-- ARGV[1] items        pairs   message id, the garbage time that the hook got; at most 200
--
-- Returns 'finished' and the number removed.
-- Cost O(n log N).
-- Safe to repeat.
--
-- A message that was requeued and is in garbage again has another garbage time: its hook runs again.
local GARBAGE, GARBAGE_HOOK = KEYS[1], KEYS[2]

local done = {}
for i = 1, #ARGV, 2 do
  local id, time = ARGV[i], tonumber(ARGV[i + 1])
  local there = redis.call('ZSCORE', GARBAGE, id)
  if not there or tonumber(there) == time then
    done[#done + 1] = id
  end
end
return {'finished', #done > 0 and redis.call('ZREM', GARBAGE_HOOK, unpack(done)) or 0}
