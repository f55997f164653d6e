#!lua flags=allow-oom
-- note_sample: appends a sample of a topic's counts to its history, which is on the topic's first shard.
--
-- KEYS[1] conf     hash   settings of the shard
-- KEYS[2] observed hash   bucket of lateness, 0 to 15 -> deliveries
-- KEYS[3] series   stream samples of minutes
-- KEYS[4] series15 stream samples of quarter hours
-- ARGV[1] quarter  flag   1 to append to `series15`
-- ARGV[2] time     ms     begin of the minute or quarter hour, which becomes the id
-- ARGV[3] keep     number largest number of samples
-- ARGV[4] again    flag   1 to append the sample even if it equals the last one
-- ARGV[5] sample   text   counts, to which the deliveries by lateness are added
--
-- Returns 'noted', and 1 if the sample was appended; 0 if the shard is gone, if there is one of that time or a later one,
--   if nothing has changed, or if the history was removed because its clock was ahead.
-- Cost O(1), and O(removed) after `keep` became smaller.
-- Safe to repeat: the second sample of a time is left out.
local CONF, OBSERVED, SERIES, SERIES15 = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local is_quarter, time, keep, again, sample = ARGV[1] == '1', ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5]

if redis.call('HEXISTS', CONF, 'layout') == 0 then
  return {'noted', 0}
end
local key = is_quarter and SERIES15 or SERIES
local counts = redis.call('HMGET', OBSERVED, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
-- Zeros at the end are omitted.
local zeros = ''
for _, count in ipairs(counts) do
  zeros = zeros .. ' ' .. (count or '0')
  if count then
    sample, zeros = sample .. zeros, ''
  end
end
return {'noted', append_sample(key, time, keep, sample, again)}
