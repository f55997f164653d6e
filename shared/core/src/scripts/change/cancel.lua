#!lua flags=allow-oom
-- cancel: removes a message, unless one of its copies is on a stream or all of them are in garbage.
--
-- ARGV[3] id       text    message id
--
-- Returns 'cancelled', 1 and the record, or 0 and '' if it was cancelled before, then the groups in whose garbage a copy
--   stays; or 'in_flight' (a group has it ready or in flight); or 'garbage';
--   or 'unknown', its tombstone's code or -1, and the id that it was merged into or ''.
-- Cost O(log N) for each group.
-- Safe to repeat: because of the tombstone, the second call also returns 'cancelled'.
local id = ARGV[3]

local _, where = locate(id)
local code, into = ending(id)
if where == 'unknown' and code ~= 1 then
  return {where, code, into}
end
read_all_sizes()
-- Builds the reply for a message that is cancelled now or was before.
local function cancelled(is_new, record)
  local reply = {'cancelled', is_new, record}
  for _, g in ipairs(groups) do
    if g.garbage_count > 0 and redis.call('ZSCORE', g.garbage, id) then
      reply[#reply + 1] = g.name
    end
  end
  return reply
end
local outcome, record = cancel(id)
if outcome == 'cancelled' then
  local reply = cancelled(1, record)
  finish()
  return reply
end
if code == 1 and outcome ~= 'in_flight' then
  return cancelled(0, '')
end
return {outcome}
