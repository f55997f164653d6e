#!lua flags=allow-oom
-- note_total: appends a sample of the sums of all topics to their history.
--
-- KEYS[1] observed hash   bucket of lateness, 0 to 15 -> deliveries of all topics
-- KEYS[2] series   stream samples of minutes
-- KEYS[3] series15 stream samples of quarter hours
-- ARGV[1] quarter  flag   1 to append to `series15`
-- ARGV[2] time     ms     begin of the minute or quarter hour, which becomes the id
-- ARGV[3] keep     number largest number of samples
-- ARGV[4] sample   text   sums, to which the deliveries by lateness are added
--
-- Returns 'noted', and 1 if the sample was appended; 0 if there is one of that time or a later one, or if the history was
--   removed because its clock was ahead.
-- Cost O(1), and O(removed) after `keep` became smaller.
-- Safe to repeat: the second sample of a time is left out.
local OBSERVED, SERIES, SERIES15 = KEYS[1], KEYS[2], KEYS[3]
local is_quarter, time, keep, sample = ARGV[1] == '1', ARGV[2], ARGV[3], ARGV[4]

local key = is_quarter and SERIES15 or SERIES
for _, count in ipairs(redis.call('HMGET', OBSERVED, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)) do
  sample = sample .. ' ' .. (count or '0')
end
return {'noted', append_sample(key, time, keep, sample, true)}
