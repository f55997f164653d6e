#!lua flags=no-writes
-- examine: says what is wrong with some messages, looking at all places of each at once.
--
-- ARGV[3] tails    pairs   group and last entry of each stream that was walked, in one text, or '-' for an entry of an empty one
-- ARGV[4] items    lists   message id, number of hints, and the hints; at most 100 items
--
-- Returns 'examined', then for each fault four: message id, code, group or '', and what was seen; the code is 'behind'
--   if a stream has grown by so much since it was walked that this cannot be told.
-- Cost O(n log N) for each group, and the entries behind the tails, of which 200 are read.
-- Safe to repeat.
local first = 4

survey_all()
read_tails(ARGV[3])
local reply = {'examined'}
while first < #ARGV do
  local id, n = ARGV[first], tonumber(ARGV[first + 1])
  local at = look(id, {unpack(ARGV, first + 2, first + 1 + n)})
  first = first + 2 + n
  local faults = judge(at)
  if #faults > 0 and at.behind then
    faults = {{code = 'behind', g = by_name[at.behind], text = 'the stream grows'}}
  end
  for _, f in ipairs(faults) do
    tell(reply, id, f)
  end
end
return reply
