-- attempts: the last failed attempts of a message, newest first, behind its last error.
--
-- They follow the last error in `attempts` and `garbage_info`, each after a NUL: "<ms> <outcome>\t<consumer>\t<error>". What
-- passes an error on passes them on with it. The last of KEYS is `failures`, which has the newest of all messages.
local KEPT, LONGEST_NAME, LONGEST_ERROR = 5, 64, 200

-- Returns the first bytes of a text, without control characters and half a character at the end.
local function shortened(text, longest)
  if #text > longest then
    text = string.gsub(string.sub(text, 1, longest), '[\192-\255][\128-\191]*$', '')
  end
  return (string.gsub(text, '%c', ' '))
end

-- Returns the error of a failed attempt, followed by this attempt and those that follow `before`, the error until now.
local function record_attempt(before, outcome, consumer, error)
  error = string.gsub(error, '%z', ' ')
  local records = {
    error,
    now .. ' ' .. outcome .. '\t' .. shortened(consumer, LONGEST_NAME) .. '\t' .. shortened(error, LONGEST_ERROR),
  }
  for record in string.gmatch(string.match(before, '%z.*') or '', '%z([^%z]+)') do
    if #records <= KEPT then
      records[#records + 1] = record
    end
  end
  return table.concat(records, '\0')
end

-- Appends a failed attempt to the newest failures of the shard. `error` is what record_attempt returned. The stream decides
-- nothing, so a damaged one must not stop the message: its error is ignored here, and the doctor reports the key.
local FAILURES, FAILURES_KEPT = KEYS[#KEYS], 1000
local function note_failure(g, id, attempt, error, outcome, time)
  redis.pcall('XADD', FAILURES, 'MAXLEN', '~', whole(FAILURES_KEPT), '*', 'i', id, 'g', g.name, 'n', whole(attempt),
    'r', string.match(error, '%z([^%z]+)'), 'o', outcome, 't', whole(time))
end

-- Puts a copy into retry. `due` is the due time of its attempt if that is delivered again uncounted. Without a pause, the
-- copy then returns to its old position. Without `due`, the next attempt is due at `time`.
local function come_again(g, m, time, due, attempts, crashes, error)
  due = due and math.min(due, now)
  local is_pause = time > now
  write_attempts(g.attempts, m.id, attempts, crashes, error, is_pause and due or nil)
  redis.call('ZADD', g.retry, not is_pause and due or time, member(m))
  look_at(time)
end

-- Returns the consumer that holds an entry, or '' if none does.
local function consumer_of(g, entry)
  local pending = redis.call('XPENDING', g.ready, g.name, entry, entry, 1)[1]
  return pending and pending[2] or ''
end
