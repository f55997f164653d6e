#!lua flags=no-writes
-- heads: reads the first bytes of stored records, which say how often and when a message is retried.
--
-- KEYS[1] payload  hash    id -> record
-- ARGV[1] length   bytes   most bytes of each record to return, 1 to 4096
-- ARGV[2] most     bytes   most bytes that Redis may read in total, except that it always reads the first record
-- ARGV[3] ids      ids     at most 200
--
-- Returns 'heads', then the first bytes of each record in turn ('' if there is none), as far as `most` allows.
-- Cost O(bytes read).
-- Safe to repeat.
local PAYLOAD = KEYS[1]
local length, most, first = tonumber(ARGV[1]), tonumber(ARGV[2]), 3

local reply, bytes = {'heads'}, 0
for i = first, #ARGV do
  -- A script can only read a whole value.
  bytes = bytes + redis.call('HSTRLEN', PAYLOAD, ARGV[i])
  if bytes > most and i > first then
    break
  end
  reply[#reply + 1] = string.sub(redis.call('HGET', PAYLOAD, ARGV[i]) or '', 1, length)
end
return reply
