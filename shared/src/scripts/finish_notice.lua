#!lua flags=allow-oom
-- finish_notice: forgets notices whose hook is done.
--
-- KEYS[1] garbage  zset    id -> time
-- KEYS[2] notices  zset    id -> time from which its hook may be tried
-- ARGV[1] items    pairs   message id, the garbage time that the hook was told; at most 200
--
-- Returns 'finished' and how many.
-- Cost O(n log N).
-- Safe to repeat.
--
-- A message that was requeued and given up again since has another garbage time: its hook runs again.
local GARBAGE, NOTICES = KEYS[1], KEYS[2]

-- A wrong type must show before the first write: nothing is rolled back.
redis.call('ZCARD', GARBAGE)
local done = {}
for i = 1, #ARGV, 2 do
  local id, time = ARGV[i], tonumber(ARGV[i + 1])
  local there = redis.call('ZSCORE', GARBAGE, id)
  if not there or tonumber(there) == time then
    done[#done + 1] = id
  end
end
return {'finished', #done > 0 and redis.call('ZREM', NOTICES, unpack(done)) or 0}
