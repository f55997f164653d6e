#!lua flags=no-writes
-- examine: finds what is wrong with some messages, looking at all states of each at one instant.
--
-- ARGV[3] tails    pairs   group and last entry of each stream that was walked, as one text; '-' for an empty stream
-- ARGV[4] items    lists   message id, number of hints, and the hints; at most 100 items
--
-- Returns 'examined', then for each fault four: message id, code, group or '', and what was seen. The code is 'behind' if a
--   stream has grown too much since it was walked for an answer.
-- Cost O(n log N) for each group, plus the entries after the tails, of which it reads about 200.
-- Safe to repeat.
local first = 4

read_all_sizes()
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
