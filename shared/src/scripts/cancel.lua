#!lua flags=allow-oom
-- cancel: removes a message none of whose copies is on a stream, unless all are in garbage.
--
-- ARGV[3] id       text    message id
--
-- Returns 'cancelled' and the record; or 'cancelled' alone if it was cancelled before; or
--   'in_flight' (a group has it ready or in flight); or 'garbage'; or 'unknown', its tombstone's code or
--   -1, and the id that it was merged into or ''.
-- Cost O(log N) for each group.
-- Safe to repeat: the tombstone makes the second answer cancelled, too.
local id = ARGV[3]

survey_all()
local outcome, record = cancel(id)
if outcome == 'cancelled' then
  finish()
  return {outcome, record}
end
local code, into = ending(id)
if code == 1 and outcome ~= 'in_flight' then
  return {'cancelled'}
end
return outcome == 'unknown' and {outcome, code, into} or {outcome}
