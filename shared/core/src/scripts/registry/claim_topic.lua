#!lua flags=allow-oom
-- claim_topic: notes the limits of a topic that a call is about to declare, so that others who sum up the limits of topics see them.
--
-- KEYS[1] topics        hash    topic -> "<shards> <epoch>", and the registry's version
-- KEYS[2] topic_claims  hash    id -> "<ms> <topic> <messages> <bytes>"
-- ARGV[1] id            text    of the claim, which no other has
-- ARGV[2] topic         name
-- ARGV[3] limits        text    "<messages> <bytes>", each a number, or - for no limit
-- ARGV[4] seen          count   the registry's version for which the caller has summed up the topics; empty if it has not
-- ARGV[5] most          count   the largest number of topics
-- ARGV[6] most_claims   count   the largest number of claims
--
-- Returns 'claimed'; 'other' if the registry is at another version; 'full' if a new topic would be one too many; 'busy' if there are too
--   many claims.
-- Cost O(1); O(claims) for a new topic if there are nearly `most`.
-- Safe to repeat.
local TOPICS, TOPIC_CLAIMS = KEYS[1], KEYS[2]
local id, topic, limits, seen, most, most_claims = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

if redis.call('HEXISTS', TOPIC_CLAIMS, id) == 1 then
  return {'claimed'}
end
local version = redis.call('HGET', TOPICS, ':version')
if seen and seen ~= (tonumber(version) or 0) then
  return {'other'}
end
local claims = redis.call('HLEN', TOPIC_CLAIMS)
if claims >= most_claims then
  return {'busy'}
end
if redis.call('HEXISTS', TOPICS, topic) == 0 then
  local count = redis.call('HLEN', TOPICS) - (version and 1 or 0)
  if count + claims >= most then
    -- Several claims may be of one topic, or of topics that exist.
    local counted = {[topic] = true}
    for i, claim in ipairs(redis.call('HGETALL', TOPIC_CLAIMS)) do
      local other = i % 2 == 0 and string.match(claim, '^%d+ (%S+) ')
      if other and not counted[other] and redis.call('HEXISTS', TOPICS, other) == 0 then
        counted[other], count = true, count + 1
      end
    end
  end
  if count >= most then
    return {'full'}
  end
end
redis.call('HSET', TOPIC_CLAIMS, id, whole(clock(0)) .. ' ' .. topic .. ' ' .. limits)
-- Nobody else claims anything beside a sum that lacks this claim.
redis.call('HINCRBY', TOPICS, ':version', 1)
return {'claimed'}
