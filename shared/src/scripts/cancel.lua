#!lua flags=allow-oom
-- cancel: removes a message none of whose copies is on a stream, unless all are in garbage.
--
-- ARGV[3] id       text    message id
--
-- Returns 'cancelled' and the record; or 'cancelled' alone if it was cancelled before; or
--   'in_flight' (a group has it ready or in flight); or 'garbage'; or 'unknown' and its tombstone's code or -1.
-- Cost O(log N) for each group.
-- Safe to repeat: the tombstone makes the second answer cancelled, too.
local id = ARGV[3]

survey_all()
local outcome, record = cancel(id)
if outcome == 'unknown' then
  local code = end_of(TOMB, id)
  return code == 1 and {'cancelled'} or {'unknown', code}
elseif outcome ~= 'cancelled' then
  return {outcome}
end
finish()
return {outcome, record}
