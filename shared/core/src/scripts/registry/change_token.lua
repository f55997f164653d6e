#!lua flags=allow-oom
-- change_token: stores, replaces or removes a token, unless another process has changed it since the caller read it.
--
-- KEYS[1] tokens   hash    token -> "<version> <record>", and the version of the hash
-- ARGV[1] token    name
-- ARGV[2] record   text    the new record; empty removes the token
-- ARGV[3] at       number  the version that the caller read; 0 for a token that does not exist
-- ARGV[4] most     count   the largest number of tokens
--
-- Returns 'done' and the new version; 'other' and the version, 0 if there is none, if it is another one; 'full' if a new token
-- would be one too many.
-- Cost O(1).
-- Safe to repeat: the second time it is at another version.
local TOKENS = KEYS[1]
local token, record, at, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local now, us = clock(0)
local version = tonumber(string.match(redis.call('HGET', TOKENS, token) or '', '^(%d+) ')) or 0
if version ~= at then
  return {'other', whole(version)}
end
if version == 0 and redis.call('HLEN', TOKENS) > most then
  return {'full'}
end
-- The version of the hash grows with each change, also if the clock is set back. A time in µs, so that it is another one if the hash
-- was lost in the meantime.
local before = tonumber(redis.call('HGET', TOKENS, ':version')) or 0
local new = whole(math.max(before + 1, now * 1000 + us))
redis.call('HSET', TOKENS, ':version', new)
if record == '' then
  redis.call('HDEL', TOKENS, token)
else
  redis.call('HSET', TOKENS, token, new .. ' ' .. record)
end
return {'done', new}
