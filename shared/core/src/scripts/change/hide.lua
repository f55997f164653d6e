#!lua flags=allow-oom
-- hide: postpones a message whose delivery has ended without its consumer, unless the group has delivered it again.
--
-- ARGV[3] group    number  consumer group: its index among all groups, from 1
-- ARGV[4] id       text    message id
-- ARGV[5] delay    ms      until it is delivered again; 0: at once, or in its turn if it is due already
--
-- Returns 'hidden'; or 'waiting'; or 'unknown'; or 'held', if it is in flight again, in garbage, or behind 100 others, or if a
--   caller chose its id: such an id can be that of another message by now.
-- Cost O(log N), its record, and 100 entries of the stream. Attempts made so far still count. It keeps its ordering key.
-- Safe to repeat: the delay counts from the repeat.
local g, delay = read_sizes(groups[tonumber(ARGV[3])]), tonumber(ARGV[5])

local outcome, m, key, text = find_late(g, ARGV[4])
if outcome then
  return {outcome}
end
if delay > 0 or key == g.retry and tonumber(redis.call('ZSCORE', key, text)) > now then
  take_visible(g, key, text)
  if g.tried > 0 then
    local attempts, crashes, error = read_attempts(redis.call('HGET', g.attempts, m.id))
    write_attempts(g.attempts, m.id, attempts, crashes, error)
  end
  redis.call('ZADD', g.retry, now + delay, member(m))
  look_at(now + delay)
  finish()
end
return {'hidden'}
