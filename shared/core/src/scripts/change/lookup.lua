#!lua flags=no-writes
-- lookup: finds the state of one message in each group, and what holds it up.
--
-- ARGV[3] id       text    message id
--
-- Returns 'unknown', its tombstone's code or -1, and the id that it was merged into or ''; or
--   'stored', now, due time (-1 if no longer known), lapse time (-1 if none), priority, ordering key, merge key, the record,
--   1 if the topic is paused, the number of groups that still owe it if it is past waiting; then for each group eleven:
--   its state (waiting, backlog, parked, retry, garbage, or stream: on the stream or ended); a time (due, next attempt, or
--   garbage time; else 0); attempts made; the `garbage_info` text in garbage, else the last error; the id of its key's
--   holder, or ''; 1 if the holder is in garbage; the number of messages before it in the backlog; the stream's length;
--   1 if that fills the window; the time from which the rate releases something (0 for now); 1 if the group is paused.
-- Cost O(log N) for each group. The caller reads from the stream whether a message there is ready or in flight and, with
--   several groups, whether it is there at all.
-- Safe to repeat.
local id = ARGV[3]

local m, where = locate(id)
if where == 'unknown' then
  return {where, ending(id)}
end
read_all_sizes()
local due = tonumber(m.waiting) or (m.has_meta and m.due) or -1
local lapses = #groups == 0 and m.lapse or math.huge
for _, g in ipairs(groups) do
  lapses = math.min(lapses, lapse_in(g, m))
end
local reply = {
  'stored', now, due, lapses < math.huge and lapses or -1, m.priority, m.key, m.merge,
  redis.call('HGET', PAYLOAD, id) or '', conf.paused and 1 or 0, owed(id),
}
for _, g in ipairs(groups) do
  local attempts, _, text = read_attempts(g.tried > 0 and redis.call('HGET', g.attempts, id))
  local state_, time, before = 'stream', 0, 0
  local holder_ = m.key ~= '' and first_holder(g, m.key) or ''
  local retry = redis.call('ZSCORE', g.retry, member(m))
  local garbage = redis.call('ZSCORE', g.garbage, id)
  local rank = g.gated > 0 and redis.call('ZRANK', g.backlog, backlog_member(m))
  if m.waiting then
    state_, time = 'waiting', m.waiting
  elseif retry then
    state_, time = 'retry', retry
  elseif garbage then
    state_, time, text = 'garbage', garbage, redis.call('HGET', g.garbage_info, id) or ''
  elseif rank then
    state_, before = 'backlog', rank
  elseif g.parked_count > 0 and redis.call('ZSCORE', g.parked, parked_member(m)) then
    state_ = 'parked'
  end
  local free = interval and math.ceil(used_up_to(g) - (burst - 1) * interval) or 0
  for _, value in ipairs({
    state_, time, attempts, text, holder_, redis.call('ZSCORE', g.garbage, holder_) and 1 or 0, before, g.stream,
    window and g.stream >= window and 1 or 0,
    free > now and free or 0, conf['paused:' .. g.name] and 1 or 0,
  }) do
    reply[#reply + 1] = value
  end
end
return reply
