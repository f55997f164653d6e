#!lua flags=allow-oom
-- claim_topic: notes the limits of a topic that a call is about to declare, so that others who sum up the limits of topics see them.
--
-- KEYS[1] topics        hash    topic -> "<shards> <epoch>", and the registry's version
-- KEYS[2] topic_claims  hash    id -> "<order> <ms> <topic> <messages> <bytes> <streams>"
-- ARGV[1] id            text    of the claim, which no other has
-- ARGV[2] topic         name
-- ARGV[3] limits        text    "<messages> <bytes> <streams>", each a number, or - for no limit
-- ARGV[4] most          count   the largest number of topics
-- ARGV[5] most_claims   count   the largest number of claims
--
-- Returns 'claimed' and the order of the claim, which grows from one to the next; 'full' if a new topic would be one too many; 'busy' if
--   there are too many claims.
-- Cost O(1); O(claims) for a new topic if there are nearly `most`.
-- Safe to repeat.
local TOPICS, TOPIC_CLAIMS = KEYS[1], KEYS[2]
local id, topic, limits, most, most_claims = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local before = redis.call('HGET', TOPIC_CLAIMS, id)
if before then
  return {'claimed', tonumber(string.match(before, '^%d+'))}
end
local claims = redis.call('HLEN', TOPIC_CLAIMS)
if claims >= most_claims then
  return {'busy'}
end
if redis.call('HEXISTS', TOPICS, topic) == 0 then
  local count = redis.call('HLEN', TOPICS) - redis.call('HEXISTS', TOPICS, ':version')
  if count + claims >= most then
    -- Several claims may be of one topic, or of topics that exist.
    local counted = {[topic] = true}
    for i, claim in ipairs(redis.call('HGETALL', TOPIC_CLAIMS)) do
      local other = i % 2 == 0 and string.match(claim, '^%d+ %d+ (%S+) ')
      if other and not counted[other] and redis.call('HEXISTS', TOPICS, other) == 0 then
        counted[other], count = true, count + 1
      end
    end
  end
  if count >= most then
    return {'full'}
  end
end
local order = redis.call('HINCRBY', TOPICS, ':version', 1)
redis.call('HSET', TOPIC_CLAIMS, id, order .. ' ' .. whole(clock(0)) .. ' ' .. topic .. ' ' .. limits)
return {'claimed', order}
