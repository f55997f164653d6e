-- series: appends samples to a history. The id of a sample is the start of its minute or quarter hour.

-- Appends a sample and keeps the newest `keep`. Returns 1; or 0 if there is one of that time or a later one, if the sample equals
-- the last one and `again` is false, or if the history was removed because its clock was ahead.
local function append_sample(key, time, keep, sample, again)
  local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  local last_time = last and tonumber(string.match(last[1], '^%d+')) or 0
  -- A time far ahead was recorded before the clock was set back.
  if last_time > clock(0) + 60000 then
    redis.call('DEL', key)
    return 0
  end
  if last and (last_time >= tonumber(time) or last[2][2] == sample and not again) then
    return 0
  end
  redis.call('XADD', key, 'MAXLEN', keep, time .. '-0', 's', sample)
  return 1
end
