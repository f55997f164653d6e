#!lua flags=no-writes
-- stats: how many messages are in each state, and the counters, at one instant.
--
-- Returns 'stats', now, 1 if paused, the class, stored messages, waiting, next due time (-1 if none), then for each group nine:
--   stream length, in flight, backlog, parked, retry, garbage, 1 if paused, drain or drop if retiring (else ''),
--   1 if it belongs to one instance; then the counters as name and value.
-- Cost O(groups).
-- Safe to repeat.
local next = redis.call('ZRANGE', WAITING, 0, 0, 'WITHSCORES')
local reply = {'stats', now, conf.paused and 1 or 0, conf.class, size.payload, size.waiting, next[2] or -1}
survey_all()
for _, g in ipairs(groups) do
  -- Without its group, which is made anew at the next read, nothing is in flight.
  local pending = redis.pcall('XPENDING', g.ready, g.name)
  for _, value in ipairs({
    g.stream, pending.err and 0 or pending[1], g.gated, g.parked, g.retries, g.buried, conf['paused:' .. g.name] and 1 or 0,
    conf['retiring:' .. g.name] or '', redis.call('HEXISTS', CONF, 'instance:' .. g.name),
  }) do
    reply[#reply + 1] = value
  end
end
for _, field in ipairs(redis.call('HGETALL', STATS)) do
  reply[#reply + 1] = field
end
return reply
