#!/usr/bin/env bash
# Plants bugs, one at a time for each core, in copies of the scripts, which a separate build reads at run time. The model test
# must fail each time; or, for a bug that shows only when two calls interleave, a test of that script.
# Not part of `make test` because it takes long. LISA_MODEL_STEPS bounds the search (20000), LISA_MODEL_SEED seeds it (1);
# LISA_MUTANTS_SECONDS bounds each run of tests (600). An argument selects bugs by a part of their names. LISA_MUTANTS_TARGET
# may name a cargo target folder to build in.
#   tests/mutants.sh --check  finds each bug's text in its script, exactly once, and ends: takes no time, builds nothing
#   tests/mutants.sh --list   prints the list
set -euo pipefail
cd "$(dirname "$0")/.."

# name | file below shared/core/src/scripts | text, which occurs there once | its replacement (\n is a line break)
mutants() {
    cat <<'LIST'
attempts not carried|prelude.lua|if attempts > 0 then\n    add(|if false then\n    add(
early by 1 ms|move_due_plain.lua|'ZRANGE', zset, '-inf', now,|'ZRANGE', zset, '-inf', now + 1,
rank off by one|move_due_plain.lua|WAITING, 0, from_waiting - 1|WAITING, 0, from_waiting
retry before waiting|move_due_plain.lua|<= tonumber(retry[r + 1])|< tonumber(retry[r + 1])
moved counter forgotten|move_due_plain.lua|redis.call('HINCRBY', STATS, 'moved:' .. group, from_waiting)|
a full batch while a million others wait|move_due_plain.lua|  batch = math.ceil(batch / 2)\n|
a full batch early|move_due_plain.lua|last and last <= now and|last and
the due of a full batch one ms late|move_due_plain.lua|'ZCOUNT', WAITING, '-inf', text|'ZCOUNT', WAITING, '-inf', '(' .. text
a late request still new|send_plain.lua|if now > fresh then|if fresh == 0 then
pause ignored by the mover|move_due_plain.lua|if conf[2] then|if false then
crashes not carried|prelude.lua|if crashes > 0 then\n    add(|if false then\n    add(
pause ignored by send|send_plain.lua|local open = not conf[2]|local open = true
a wrong type found after a write|send_plain.lua|redis.call('HLEN', PAYLOAD)\n|
duplicates overwrite|send_plain.lua|if redis.call('HEXISTS', PAYLOAD, id) == 1 then|if false then
tombstones ignored by send|send_plain.lua|elseif tomb and tomb >= oldest|elseif false and tomb >= oldest
wake forgotten by send|send_plain.lua|wake(WAKE, STATS, stats[2], earliest)|
payload kept at ack|ack_plain.lua|redis.call('HDEL', PAYLOAD, unpack(taken, at + count, at + 2 * count - 1))|
stale acks count|ack_plain.lua|unpack(ARGV, first, first + n - 1)) < n then|unpack(ARGV, first, first + n - 1)) < 0 then
tombstone missing at ack|ack_plain.lua|if not is_stale[i] then|if is_stale[i] then
no fence in settle|settle.lua|redis.call('XACK', g.ready, g.name, entry) == 0|redis.call('XACK', g.ready, g.name, entry) == -1
retry counted at defer|settle.lua|'deferred', attempts, 0, last_error|'deferred', attempts + 1, 0, last_error
crashes forgotten at a hand-back|settle.lua|'deferred', attempts, crashes, last_error)\n    else|'deferred', attempts, 0, last_error)\n    else
crashes forgotten where no handler ran|settle.lua|again(m, now, due, 'deferred', attempts, crashes, last_error)|again(m, now, due, 'deferred', attempts, 0, last_error)
due again where no handler ran|settle.lua|again(m, now, due, 'deferred',|again(m, now, nil, 'deferred',
due again at a hand-back|settle.lua|again(m, due_at(when, now), due, 'deferred', attempts, crashes|again(m, due_at(when, now), nil, 'deferred', attempts, crashes
crashes kept after a retry|settle.lua|'retry', attempts + 1, 0, error|'retry', attempts + 1, crashes, error
crashes kept after a defer|settle.lua|'deferred', attempts, 0, last_error|'deferred', attempts, crashes, last_error
attempt counted at a hand-back|settle.lua|'deferred', attempts, crashes, last_error)\n    else|'deferred', attempts + 1, crashes, last_error)\n    else
rate used by what is handed back|settle.lua|        refund(tonumber(fields.r) or due)\n|
rate given back since it was due|settle.lua|refund(tonumber(fields.r) or due)|refund(due)
rate given back that was free by itself|settle.lua|interval - (now - released)|interval
one attempt too many|settle.lua|attempts + 1 >= max_attempts|attempts >= max_attempts
entry kept at settle|settle.lua|redis.call('XDEL', g.ready, entry)|
payload not asked for in settle|settle.lua|if redis.call('HEXISTS', PAYLOAD, id) == 0 then|if false then
reclaim without the idle check|reclaim.lua|g.name, 'IDLE', lease, entry|g.name, 'IDLE', 0, entry
every crash charged|reclaim.lua|if is_marked then\n        attempts|if true then\n        attempts
first crash charged|reclaim.lua|if is_marked then\n        attempts|if is_marked or crashes == 0 then\n        attempts
no crash charged|reclaim.lua|if is_marked then\n        attempts|if false then\n        attempts
crash not counted|reclaim.lua|is_pulled and crashes or crashes + 1|crashes
a pull counted as a crash|reclaim.lua|is_pulled and crashes or crashes + 1|crashes + 1
a pull reclaimed before its lease ends|reclaim.lua|pending[4] > 2 and pending[4] > now|false
a pull held after its lease has ended|reclaim.lua|pending[4] > 2 and pending[4] > now|pending[4] > 2
due again after a crash|reclaim.lua|not is_marked and tonumber(fields.d) or nil|nil
due as it was after a charged crash|reclaim.lua|not is_marked and tonumber(fields.d)|tonumber(fields.d)
due lost in a pause|attempts.lua|is_pause and due or nil|nil
due again without a pause|attempts.lua|not is_pause and due or time|time
due in the future after a step back|attempts.lua|due and math.min(due, now)|due
due of a plain retry lost|move_due_plain.lua|own_due and whole(own_due) or retry[r + 1]|retry[r + 1]
due of a retry lost|move_due.lua|local due = own_due or pick.due|local due = pick.due
due of a retry ignored at its gate|transitions.lua|due = own_due and math.min(own_due, now) or due or|due = due or
due in the future of a clock that stepped back|transitions.lua|own_due and math.min(own_due, now)|own_due
due kept in spite of a reschedule|reschedule.lua|write_attempts(at.g.attempts, id, attempts, crashes, error)|
due again when its consumer is gone|clean.lua|math.min(tonumber(fields.d) or now, now)|now
due before the requeue|requeue.lua|is_keyed and now or nil|nil
attempts forgotten at a requeue|requeue.lua|0, 0, error or ''|0, 0, ''
attempts of an unfinished first attempt dropped|prelude.lua|crashes > 0 or error ~= '' or due|crashes > 0 or due
release of a rate not noted|transitions.lua|return interval and due < now and due_text(now)|return nil
a pull charged to its consumer|reclaim.lua|local error = is_pulled and|local error = false and
charged crash comes again at once|reclaim.lua|attempts + 1, now + delay|attempts + 1, now
a failed attempt too few|attempts.lua|if #records <= KEPT then|if #records < KEPT then
failures never dropped|attempts.lua|'MAXLEN', '~', whole(FAILURES_KEPT), '*'|'*'
failures of one shard too few|attempts.lua|FAILURES, FAILURES_KEPT = KEYS[#KEYS], 1000|FAILURES, FAILURES_KEPT = KEYS[#KEYS], 500
a failure with the next attempt|settle.lua|note_failure(g, id, attempts + 1,|note_failure(g, id, attempts + 2,
a lost message listed as a failure|settle.lua|if failed and outcome ~= 'lost' then|if failed then
a crash listed as the next attempt|reclaim.lua|local attempt, time = attempts + 1, now|local attempt, time = attempts + 2, now
an expired lease not listed|reclaim.lua|note_failure(g, id, attempt, error, reply[#reply - 1], reply[#reply])|
earlier attempts forgotten at settle|settle.lua|record_attempt(last_error,|record_attempt('',
earlier attempts forgotten at reclaim|reclaim.lua|record_attempt(last_error,|record_attempt('',
attempts kept in garbage|transitions.lua|forget_attempts(g, m)\n  unmerge(m)\n  if conf.on_garbage|unmerge(m)\n  if conf.on_garbage
groups with garbage not named at cancel|cancel.lua|      reply[#reply + 1] = g.name|
tombstone missing at cancel|transitions.lua|entomb(TOMB, id, now, 1)|
attempts left at the end|copies.lua|count(what .. ':' .. g.name)\n  forget_attempts(g, m)|count(what .. ':' .. g.name)
cancel of what is in flight|transitions.lua|if #states + in_garbage < owed(id) then|if false then
wake forgotten by the general scripts|transitions.lua|wake(WAKE, STATS, stats[2], earliest)|
outdated requeue|requeue.lua|redis.call('ZSCORE', g.garbage, id)) == time|redis.call('ZSCORE', g.garbage, id))
requeue keeps the reason|requeue.lua|redis.call('HDEL', g.garbage_info, id)|
payload kept at the end|transitions.lua|redis.call('HDEL', PAYLOAD, unpack(gone))|
index kept at the end|transitions.lua|redis.call('ZREM', BYKEY, unpack(gone_keys))|
index without the setting|transitions.lua|if m.key ~= '' and conf.key_index then|if m.key ~= '' then
tombstones dropped too soon|prelude.lua|(now - dedup) * 4|(now - dedup + 1) * 4
tombstones never dropped|forget.lua|local dropped = math.min(old, batch)|local dropped = 0
tombstones dropped for a purge|forget.lua|dedup < 0 and oldest_tombstone(-dedup, 0)|dedup < 0 and math.huge
the end of an old id kept|send_plain.lua|redis.call('ZREM', TOMB, unpack(outlived))|
the end of an old id kept by send|send.lua|redis.call('ZREM', TOMB, unpack(renewed))|
a batch overwrites what is stored|send.lua|    if stored[i] or tombs[i] or ARGV|    if tombs[i] or ARGV
a batch ignores tombstones|send.lua|    if stored[i] or tombs[i] or ARGV|    if stored[i] or ARGV
a batch replaces nothing|send.lua|tombs[i] or ARGV[at + 7] ~= '' then|tombs[i] then
a replacement makes its shard general|send.lua|        if item.key ~= '' or scope or item.priority ~= 0 or item.ttl ~= 0 then\n          become_general()|        if true then\n          become_general()
a refused message makes its shard general|send.lua|if conf.class ~= 'plain' then\n  open_window()\nend|become_general()
a stored message leaves its shard plain|send.lua|item.ttl ~= 0 then\n          become_general()|item.ttl ~= 0 then
a batch leaves its shard plain|send.lua|    become_general()\n    size.meta|    size.meta
a shard becomes general without a window|send.lua|'class', 'general')\n    open_window()|'class', 'general')
a repeat of a cancel finds nothing|cancel.lua|code ~= 1 then|code ~= 9 then
a batch ignores the limits|send.lua|conf.closed or conf.removed or max_messages or max_bytes then|conf.closed or conf.removed then
a batch is not merged with itself|send.lua|      if is_scope[scope] then|      if false then
a batch is not merged with others|send.lua|      if id then\n        return false|      if false then\n        return false
a batch cannot be merged into|send.lua|hset_all(MERGE, size.merge, scoped)|
a batch can be put off for ever|send.lua|merge_key ~= '' and cap or 0|0
a batch is not in the index|send.lua|redis.call('ZADD', BYKEY, unpack(indexed))|
a batch has no ttl of its topic|send.lua|      ttl = default_ttl|
a batch has no ranks to count off|send.lua|      if priority ~= 0 or merge_key ~= '' then\n        count('ranked')|      if false then\n        count('ranked')
a duplicate past its window|send.lua|elseif tombs[i] and tonumber(tombs[i]) >= oldest then|elseif tombs[i] then
sent again although it was acknowledged|send.lua|if code == 1 and tonumber(tombs[i]) == again[i] then|if tonumber(tombs[i]) == again[i] then
not sent again by a plain topic|send_plain.lua|(tomb % 4 == 1 and tomb == again[i])|true
ended by the call itself and not said|send.lua|  if stored[i] and not is_gone[item.id] then|  if stored[i] then
a plain duplicate past its window|send_plain.lua|tomb and tomb >= oldest|tomb
tombstones beside the limit|send.lua|(size.tomb + merged) * TOMB_BYTES|0
held entries recovered|clean.lua|entry[1], entry[1], 1) == 0|entry[1], entry[1], 1) >= 0
last time not held|prelude.lua|last - now <= 1000|last - now <= 0
past instants not lifted to now|prelude.lua|math.max(-when, now)|-when
the pause from the beginning of the ms|move_due_plain.lua|(look - now) * 1000 - us|(look - now) * 1000
early by 1 ms in a full topic|move_due.lua|'ZRANGE', l.zset, '-inf', last,|'ZRANGE', l.zset, '-inf', last + 1,
the pause in a full topic from the beginning of the ms|move_due.lua|(look - now) * 1000 - us|(look - now) * 1000
retry and waiting not merged by time|move_due.lua|if time and (not soonest or time < soonest.time|if time and (not soonest or false
waiting before retry at the same time|move_due.lua|or time == soonest.time and arrival|or false and arrival
a group that retires gets new ones|move_due.lua|if not conf['retiring:' .. g.name] then|if true then
retry of a paused group moved|move_due.lua|if g.retries > 0 and not conf['paused:' .. g.name] then|if g.retries > 0 then
left not written|move_due.lua|set_owed(m.id, #active)|
left of a batch not written|move_due.lua|hset_all(LEFT, size.left, owing)|0
a batch overtakes a holder|move_due.lua|if holder and holder ~= id then|if false then
a batch forgets the holders before it|move_due.lua|        holders[keys[i]] = id|
a batch forgets its own holders|move_due.lua|          holders[key] = id|
a batch takes keys and does not say|move_due.lua|hset_all(g.holder, g.held, held)|0
a batch parks by arrival only|move_due.lua|string.format('%014d', due)|string.rep('0', 14)
a batch without meta is due when it likes|move_due.lua|dues[positions[at]] = due|dues[positions[at]] = '0'
a batch is parked without its arrival|move_due.lua|and string.sub(text, 2) or|and '000000000000' .. ids[i] or
a batch leaves a long field|transitions.lua|redis.call('HDEL', hash, LONG)|
a batch leaves a long member|transitions.lua|redis.call('ZREM', zset, LONG)|
a batch goes past its gates|move_due.lua|elseif gated then|elseif false then
a batch by due time only|move_due.lua|ranks[i] = priority == 0 and|ranks[i] = true and
a batch that was held back has no due time|move_due.lua|hset_all(META, size.meta, bare)|0
a batch moves what expired|move_due.lua|if lapse <= now or exempt|if lapse < now or exempt
a batch does not say when it ends|move_due.lua|'d', dues[i], 'x', lapses[i])|'d', dues[i])
a batch not counted for its group|move_due.lua|count('moved:' .. g.name, n)|
a batch and retries not merged|move_due.lua|waiting and not has_retries and move_waiting()|waiting and move_waiting()
due of a retry lost in a backlog|move_due.lua|write_attempts(g.attempts, m.id, attempts, crashes, error, due)|
release forgotten at ack|ack.lua|release_all(g, keyed, keys)|
release forgotten at purge|purge.lua|release(g, m)|
release forgotten when lost|settle.lua|end_copy(g, m, 'lost')\n      release(g, m)|end_copy(g, m, 'lost')
release forgotten at expiry|transitions.lua|unmerge(m)\n    release(g, m)|unmerge(m)
release forgotten in garbage|transitions.lua|if conf.on_garbage ~= 'block' then|if false then
release in spite of block|transitions.lua|if conf.on_garbage ~= 'block' then|if true then
release forgotten when taken out|transitions.lua|  release(at.g, m)|
release by who is not the holder|transitions.lua|not is_over[key] and without(rests[key] or holders, ids[i])|not is_over[key] and ''
late: taken from a consumer|visible.lua|'(' .. delivered, '+'|'-', '+'
late: the key is kept|ack_late.lua|release(g, m)|
late: the entry stays|visible.lua|    redis.call('XDEL', key, text)\n|
late: an id that a caller chose|visible.lua|not flags or flags % 2 == 1|not flags
late: behind more than it looks at|visible.lua|AHEAD = 100|AHEAD = 101
late: its room stays taken|visible.lua|    g.stream = g.stream - 1\n|
late: a waiting message|visible.lua|if where then|if where == 'unknown' then
hidden: not for the delay|hide.lua|redis.call('ZADD', g.retry, now + delay|redis.call('ZADD', g.retry, now
hidden: a due time of its own stays|hide.lua|    write_attempts(g.attempts, m.id, attempts, crashes, error)\n|
hidden: its crashes are forgotten|hide.lua|m.id, attempts, crashes, error)\n|m.id, attempts, 0, error)\n
hidden: its key goes on|hide.lua|  look_at(now + delay)\n|  look_at(now + delay)\n  release(g, m)\n
hidden: the mover is not woken|hide.lua|  look_at(now + delay)\n|
hidden: moved although it is visible|hide.lua|if delay > 0 or key == g.retry and tonumber(redis.call('ZSCORE', key, text)) > now then|if true then
hidden: its turn is lost|hide.lua| and tonumber(redis.call('ZSCORE', key, text)) > now|
together: the key goes on with the first to leave|transitions.lua|    if rest and rest ~= '' then|    if rest and rest == 1 then
together: one comes again beside the others|transitions.lua|    if held and held ~= m.id then|    if held and not without(held, m.id) then
together: one that comes again keeps the key|transitions.lua|      if without(held, m.id) then|      if false then
together: taken past what is ready|take_parked.lua|if is_aside or #ready == 0 then|if true then
together: taken past many that are ready|take_parked.lua|if not ready or #ready > MOST_READY then|if not ready then
together: what is ready is lost|take_parked.lua|if is_aside then|if false then
together: what is ready is given twice|take_parked.lua|  redis.call('XDEL', g.ready, unpack(entries))\n|
together: what is ready stays in flight|take_parked.lua|'COUNT', #ready, 'NOACK', 'STREAMS'|'COUNT', #ready, 'STREAMS'
together: taken past a gate|take_parked.lua|and not is_gated(g) |
together: the key is left to the first|take_parked.lua|redis.call('HSET', g.holder, m.key, holders)|
together: taken twice|take_parked.lua|holder(g, m.key) ~= m.id|not without(holder(g, m.key), m.id)
together: taken for a delivery that is settled|take_parked.lua| or #redis.call('XPENDING', g.ready, g.name, entry, entry, 1) == 0|
together: more of a key than were asked for|take_parked.lua|math.min(each - 1, most - kept - sent, budget)|math.min(most - kept - sent, budget)
together: more than were asked for|take_parked.lua|while kept < count_of_items and kept + sent < most do|while kept < count_of_items do
together: who finds no place stays in flight|take_parked.lua|for i = kept + 1, count_of_items do|for i = kept + 1, 0 do
parked bound without NUL|transitions.lua|'[' .. key .. '\0', '(' .. key .. '\1'|'[' .. key, '(' .. key .. '~'
parked by arrival only|copies.lua|return m.key .. '\0' .. backlog_member(m)|return m.key .. '\0' .. string.format('%014d%012d', 0, m.seq) .. m.id
backlog by due time only|transitions.lua|whole(-m.priority), backlog_member(m)|0, backlog_member(m)
pause open to the next of a key|transitions.lua|return is_shut or conf['paused:'|return conf['paused:'
pump in a paused group|transitions.lua|if g.gated == 0 or is_shut or conf['paused:' .. g.name] then|if g.gated == 0 or conf.paused then
window ignored|transitions.lua|window and window - g.stream or budget|budget
window kept for ever|transitions.lua|redis.call('HDEL', CONF, 'window')|
ranked messages not counted off|copies.lua|count('ranked', -1)|
mover not woken when the window goes|transitions.lua|'window')\n    look_at(now)|'window')
room not made by acks|ack.lua|g.stream = g.stream - #entries|
rate ignored|transitions.lua|spare = math.floor(|spare = 1000 + math.floor(
burst one too large|transitions.lua|(now + burst * interval - tat)|(now + (burst + 1) * interval - tat)
expired delivered|transitions.lua|if lapses <= now then|if lapses < now then
late attempt delivered|transitions.lua|lapses = math.min(lapses, due + max_lateness)|
last error lost at expiry|transitions.lua|text .. (string.find(error, '^%Z') and ': ' or '') .. error|text
expiry not on the entry|prelude.lua|if lapses < math.huge then|if false then
index outlives delivery|transitions.lua|  unmerge(m)\n  g.stream = g.stream + 1|  g.stream = g.stream + 1
index outlives a backlog|transitions.lua|  unmerge_all(merging, scopes)\n|
index outlives expiry in one group|transitions.lua|end_copy(g, m, 'expired', 3)\n    unmerge(m)|end_copy(g, m, 'expired', 3)
index outlives garbage|transitions.lua|forget_attempts(g, m)\n  unmerge(m)\n  if|forget_attempts(g, m)\n  if
payload removed by the first group|copies.lua|  if n > 1 then\n    set_owed|  if false then\n    set_owed
arrival not renewed|transitions.lua|m.seq = arrive()\n    write_meta(m)|write_meta(m)
moved not taken back|transitions.lua|count('moved:' .. at.g.name, -1)|
meta kept at the end|transitions.lua|redis.call('HDEL', META, unpack(gone_meta))|
the end of a survivor forgotten|ack.lua|is_caller[id] or is_survivor then|is_caller[id] then
left not counted down by acks|ack.lua|    set_owed(id, n - 1)|
payload removed by the first group that acknowledges|ack.lua|  if n <= 1 then|  if true then
meta kept at acks|ack.lua|gone_meta[#gone_meta + 1] = id|
index kept at acks|ack.lua|gone_keys[#gone_keys + 1] = key .. '\0' .. id|
bytes kept at acks|ack.lua|count('bytes', -freed)|
ranked messages kept at acks|ack.lua|count('ranked', -unranked)|
attempts left at acks|ack.lua|g.untried = ids|
tombstones missing at acks|ack.lua|redis.call('ZADD', TOMB, unpack(tombs))|
a batch leaves the next of a key parked|transitions.lua|redis.call('ZREM', g.parked, unpack(heads))|
a batch frees a key with others behind|transitions.lua|free[#free + 1] = key|free[#free + 1] = key; g.parked_count = 0
a batch keeps a key without others|transitions.lua|redis.call('HDEL', g.holder, unpack(free))|
a batch leaves a key to who ended|transitions.lua|redis.call('HSET', g.holder, unpack(held))|
a batch opens a gate to the next of a key|transitions.lua|if is_gated(g) then\n    prefetch|if false then\n    prefetch
a batch delivers what expired|transitions.lua|lapses and (lapses <= now or|lapses and (lapses < now or
a long element that can be a key|transitions.lua|string.rep('\0', 65)|string.rep('~', 65)
a batch forgets attempts|transitions.lua|if packed[i] and not tried[i] and|if packed[i] and
a batch is not too late|transitions.lua|lapses = math.min(lapses or math.huge, due + max_lateness)|
a batch does not say when it expires|transitions.lua|'d', due_text(due), 'x', whole(lapses))|'d', due_text(due))
a batch can still be merged into|transitions.lua|  unmerge_all(merging, scopes)\n  return sent|  return sent
a batch ends the merging into another|transitions.lua|    if id == ids[i] then\n      over|    if id then\n      over
a survivor that is no more one|copies.lua|is_survivor == 1, seq, cap|false, seq, cap
no survivor of a merged id|send.lua|redis.call('HSET', INTO, item.id, id)|
the survivor of a merged id not named|send.lua|      if survivor then\n        write()|      if false then\n        write()
the survivor of a merged id not named by a plain topic|send_plain.lua|code == 2 and redis.call('HGET', INTO, id) or ''|''
survivors outlive tombstones|forget.lua|if merged > 0 and dropped == all then|if false then
no tombstone of a merged id|send.lua|entomb(TOMB, item.id, now, 2)|
merge into what is in flight|send.lua|  if where ~= 'waiting' and where ~= 'held' then\n    return false|  if false then\n    return false
merge put off past its limit|send.lua|due = math.min(due, math.max(m.cap, now))|
options of the last send lost|send.lua|m.priority, m.ttl, m.is_survivor = item.priority, item.ttl, true|m.is_survivor = true
limit ignored|send.lua|count_stored - room >= max_messages|false
replaced one kept|send.lua|        cancel(item.replaces)|
retry past the expiry|settle.lua|if time >= lapse_in(g, m) then|if false then
reschedule forgets the garbage|reschedule.lua|if where == 'held' and in_garbage > 0 then|if false then
reschedule of what was begun waits|reschedule.lua|if begun or #states < active then|if #states < active then
requeue keeps the old ttl|requeue.lua|if lapse_in(g, m) < math.huge then|if false then
requeue takes the expiry from all groups|copies.lua|return is_exempt and math.huge or m.lapse|return m.exempt ~= '' and math.huge or m.lapse
pause leaves the class|pause.lua|redis.call('HSET', CONF, 'class', 'general')|
a plain topic delivers to a group that goes|retire.lua|, how, 'class', 'general')|, how)
a plain topic delivers to an instance that is gone|clean.lua|'drop', 'class', 'general')|'drop')
moved for no group|move_due.lua|local waiting = open and|local waiting = (open or #groups == 0) and
class lowered too soon|clean.lua|and #groups == 1 and used == 0|and #groups == 1
dropped copies still owed|remove_group.lua|end_copy(g, m, 'dropped')|count('dropped:' .. g.name)
a dropped one keeps its key|remove_group.lua|  release(g, m)|
reasons of dropped garbage kept|remove_group.lua|redis.call('HDEL', g.garbage_info, id)|
resharding: a batch taken in twice|migrate_in.lua|if batch > tonumber(last_batch) then|if batch > 0 then
resharding: what is refused forgotten at a repeat|migrate_in.lua|elseif batch == tonumber(last_batch) then|elseif false then
resharding: two of one id made one|migrate_in.lua|if redis.call('HEXISTS', PAYLOAD, ARGV[i]) == 1 then|if false then
resharding: no watermark|move_due.lua|(tonumber(conf.watermark) or math.huge) - 1|math.huge
resharding: the watermark of one old shard|migrate_in.lua|watermark = math.min(watermark, tonumber(redis.call('HGET', CONF, fields[i])) or 0)|watermark = watermark_there < 0 and FOREVER or watermark_there
resharding: a watermark for ever|migrate_in.lua|redis.call('HDEL', CONF, 'watermark')|
resharding: keys in flight not waited for|migrate_out.lua|local watermark = has_holders and 0 or|local watermark =
resharding: a batch dropped before it is done|migrate_out.lua|if done == batch and done > 0 then|if batch > 0 then
resharding: what is refused does not come back|migrate_out.lua|for id in string.gmatch(refused, '%S+') do|for id in string.gmatch('', '%S+') do
resharding: a batch of an old number|migrate_out.lua|batch = math.max(batch + 1, now)|batch = batch + 1
resharding: a shard that is left stores|migrate_out.lua|'closed', 1, 'class'|'class'
resharding: what comes off a stream is due now|migrate_out.lua|redis.call('ZADD', g.retry, fields.d or now, member|redis.call('ZADD', g.retry, now, member
resharding: what is read comes off a stream|migrate_out.lua|'(' .. info['last-delivered-id'], '+', 'COUNT', MOST|'-', '+', 'COUNT', MOST
resharding: the lag of a group is lost|migrate_out.lua|      pass(g, info, unread[#unread][1])|
resharding: the lag of a group counts what is in flight|migrate_out.lua|g.stream - info.pending|g.stream
resharding: a group does not pass what was deleted|migrate_out.lua|next and last or after|last
resharding: a group passes an unread entry|migrate_out.lua|next and last or after|after
resharding: a batch of any size|migrate_out.lua|if bytes > 0 and bytes + sizes[i] > MOST_BYTES then|if false then
resharding: a rate not passed on|migrate_out.lua|tats[#tats + 1] = g.name .. ' ' .. tat|
resharding: streams are not left|migrate_out.lua|left = left + g.stream|
resharding: a closed shard stores|send.lua|local is_new = (conf.closed or conf.removed) and not replaced|local is_new = conf.removed and not replaced
resharding: in flight taken out|bundles.lua|if where == 'unknown' or where == 'in_flight' then|if where == 'unknown' then
resharding: a waiting head keeps its key|bundles.lua|attempts + crashes > 0 and holds|holds
resharding: a begun message loses its key|bundles.lua|if is_holder and not holder(g, m.key) then|if false then
resharding: attempts forgotten|bundles.lua|redis.call('HSET', g.attempts, id, attempts)|
resharding: nobody owes it|bundles.lua|    set_owed(id, kept)|
resharding: can be merged no more|bundles.lua|redis.call('HSET', MERGE, scope, id)|
resharding: the sums of one side only|bundles.lua|    count('shifted')|
resharding: counters added twice|merge_counters.lua|if redis.call('HEXISTS', STATS, 'merged_from_' .. from) == 1 then|if false then
resharding: a rate begins again|migrate_in.lua|redis.call('HSET', STATS, 'tat:' .. name, tat)|
resharding: other old shards forgotten|mark_retired.lua|behind = math.max(tonumber(behind), tonumber(last or behind))|
resharding: what was held back loses its due time|bundles.lua|return m.due, attempts|return now, attempts
resharding: unread entries stay|migrate_out.lua|if #bundles == 0 and #ARGV < first then|if false then
resharding: what comes off a stream stays on it|migrate_out.lua|redis.call('XDEL', g.ready, found[1])|
resharding: a merge key not passed on|migrate_out.lua|bundles[#bundles + 1], bundles[#bundles + 2] = '\1' .. scope, ARGV[i]|
heads: a large record alone is not read|heads.lua|bytes > most and i > first|bytes > most
heads: all records in one call|heads.lua|bytes > most and i > first|false
heads: another part of the record|heads.lua|or '', 1, length)|or '', 2, length)
heads: a record that is not there|heads.lua|redis.call('HGET', PAYLOAD, ARGV[i]) or ''|redis.call('HGET', PAYLOAD, ARGV[i])
stats: deliveries are not held|stats.lua|held = held + consumer.pending|held = held
stats: who only holds reads|stats.lua|local reads = string.sub(consumer.name, -#HOLDS) ~= HOLDS|local reads = true
stats: what was read is ready|stats.lua|delivered and '(' .. delivered or '-'|'-'
stats: ready of another group|streams.lua|if found.name == g.name then|if true then
stats: the less urgent not looked at|stats.lua|tonumber(string.sub(low, 1, 14))|math.huge
stats: the more urgent not looked at|stats.lua|tonumber(string.sub(head, 1, 14)), tonumber|math.huge, tonumber
stats: one ordering key looked at|stats.lua|KEYS_LOOKED_AT = 8|KEYS_LOOKED_AT = 1
stats: the whole parked of a key|stats.lua|from = '[' .. string.sub(head, 1, nul - 1) .. '\1'|from = '(' .. head
stats: what is ready is not old|stats.lua|    ready, g.gated > 0|    math.huge, g.gated > 0
stats: what is retried is not old|stats.lua|    tonumber(retry or math.huge), not|    math.huge, not
stats: what waits is not old|stats.lua|not conf['retiring:' .. g.name] and tonumber(next[2])|nil
stats: a group that retires is behind|stats.lua|not conf['retiring:' .. g.name] and tonumber(next[2])|tonumber(next[2])
library: a repeat undoes a cancel|send.lua|code == 1 and tonumber(tombs[i]) == again[i] then|code == 1 and again[i] then
library: a repeat undoes a cancel on a plain topic|send_plain.lua|tomb % 4 == 1 and tomb == again[i]|tomb % 4 == 1 and again[i]
library: known ids come with their records|prelude.lua|  if not has_own then\n|  if true then\n
moving slot: waiting read after its last|move_due_plain.lua|WAITING, 0, from_waiting - 1)|WAITING, 0, from_waiting - 1)\n  redis.call('ZCARD', WAITING)
moving slot: payload read after its last|ack_plain.lua|redis.call('HDEL', PAYLOAD, unpack(taken, at + count, at + 2 * count - 1))|redis.call('HDEL', PAYLOAD, unpack(taken, at + count, at + 2 * count - 1))\n  redis.call('HLEN', PAYLOAD)
moving slot: notices read after their last|take_garbage_hooks.lua|redis.call('ZREM', GARBAGE_HOOK, id)|redis.call('ZREM', GARBAGE_HOOK, id)\n    redis.call('ZCARD', GARBAGE_HOOK)
moving slot: managers read after the last|heartbeat.lua|'ZREMRANGEBYSCORE', MANAGERS, '-inf', now)|'ZREMRANGEBYSCORE', MANAGERS, '-inf', now)\nredis.call('ZCARD', MANAGERS)
history: a minute twice|series.lua|last_time >= tonumber(time) or|false or
history: a quiet minute written|series.lua|last[2][2] == sample and not again|false
history: no bound|series.lua|'XADD', key, 'MAXLEN', keep,|'XADD', key,
history: left on a shard that is gone|note_sample.lua|redis.call('HEXISTS', CONF, 'layout') == 0|false
history: a clock that was ahead|series.lua|if last_time > clock(0) + 60000 then|if false then
history of all: lateness without zeros|note_total.lua|(count or '0')|(count or '')
history of all: in the other stream|note_total.lua|is_quarter and SERIES15 or SERIES|SERIES
history: lateness without zeros|note_sample.lua|sample, zeros = sample .. zeros, ''|sample, zeros = sample .. ' ' .. count, ''
history: lateness on a shard that is gone|observe.lua|redis.call('HEXISTS', CONF, 'layout') == 0|false
removal taken for a loss|declare.lua|if conf[9] and (conf[9] ~= 'gone' or mode ~= 'update') then|if false then
removal forgets its epoch|declare.lua|local before = epoch or tonumber(conf[10]) or 0|local before = epoch or 0
removal of a new topic that ends by itself|declare.lua|    if i % 2 == 1 then|    if i == 1 then
removal of a shard that has messages|remove_shard.lua|elseif left > 0 and conf.removed ~= 'force' then|elseif false then
removal of a shard that has deliveries|remove_shard.lua|left = math.max(left, g.stream)|left = left
removal without a record|remove_shard.lua|if keep > 0 then|if false then
removal of a topic that was created again|unregister.lua|if not there or tonumber(there) > epoch then|if not there then
removal of shards of another topic|remove_topic.lua| or version and (tonumber(conf[5]) or 0) > version then| then
removal begun during a resharding|remove_topic.lua|elseif conf[3] or conf[4] and conf[4] ~= 'over' then|elseif false then
removal of a topic of another epoch|remove_topic.lua|elseif seen and seen ~= tonumber(conf[1]) then|elseif false then
removal that a drain calls off|remove_topic.lua|elseif conf[2] == 'force' or conf[2] == how then|elseif conf[2] == how then
removal that accepts new messages|send.lua|local is_new = (conf.closed or conf.removed) and not replaced|local is_new = conf.closed and not replaced
settings go back on a shard|declare.lua|local replaces = mode == 'update' and not (version and there > version)|local replaces = mode == 'update'
settings missed by a shard|declare.lua|elseif version and version > there and conf[4] ~= settings then|elseif false then
settings changed under a condition|declare.lua|elseif mode == 'update' and seen ~= ''|elseif false and seen ~= ''
resharding loses settings|declare.lua|if conf[8] and is_whole and not keeps then|if false then
restoring on older shards|redirect.lua| or restores and (conf[1] or conf[2])|
restoring on the first shard|declare.lua|if not epoch and conf[11] then|if false then
claims without an order|claim_topic.lua|redis.call('HINCRBY', TOPICS, ':version', 1)|tonumber(redis.call('HGET', TOPICS, ':version')) or 0
claim of one topic too many|claim_topic.lua|if count >= most then|if count > most then
claims that are no topics yet|claim_topic.lua|counted[other], count = true, count + 1|counted[other] = true
audit log that drops the oldest of all|note_action.lua|count_of[name] > math.max(share, 1) and|true and
audit log that keeps all|note_action.lua|redis.call('XDEL', AUDIT, unpack(old))|local _ = old
move task that counted too few|start_move_task.lua|~= starts then|~= starts and false then
move tasks that are not counted|start_move_task.lua|redis.call('HINCRBY', MOVE_TASKS, ':starts', 1)|local _ = starts
token changed at another version|change_token.lua|if version ~= at then|if false then
token whose change nobody sees|change_token.lua|redis.call('HSET', TOKENS, ':version', new)\n|
tokens whose version begins again|change_token.lua|math.max(before + 1, now * 1000 + us)|before + 1
one token too many|change_token.lua|redis.call('HLEN', TOKENS) > most|false
token that is not removed|change_token.lua|if record == '' then|if false then
schedule changed at another version|put_schedule.lua|if at and at ~= version then|if false then
schedule whose version goes back|put_schedule.lua|math.max(version + 1, now * 1000 + us)|version + 1
schedule that begins again at each change|put_schedule.lua|if of ~= rule or tonumber(time) > now + 60000 then|if true then
schedule that is taken though it is paused|put_schedule.lua|if redis.call('HEXISTS', PAUSED_SCHEDULES, schedule) == 0 then|if true then
schedule beyond a quota|put_schedule.lua|if count >= max_own then|if count > max_own then
schedule of which only one pattern counts|put_schedule.lua|count = count + redis.call('ZLEXCOUNT'|count = redis.call('ZLEXCOUNT'
schedule that a full quota keeps from a change|put_schedule.lua|if not before and max_own then|if max_own then
schedule removed at another version|remove_schedule.lua|if at and at ~= version then|if false then
schedule that leaves its times|remove_schedule.lua|redis.call('ZREM', FIRES, schedule)|
schedule that is paused and still taken|pause_schedule.lua|  redis.call('ZREM', FIRES, schedule)\n|
schedule that makes up for its pause|pause_schedule.lua|if time and (tonumber(time) < now or tonumber(time) > now + 60000) then|if false then
schedule taken twice|take_fires.lua|whole(now + lease), schedule)|whole(now), schedule)
schedules taken without a bound of bytes|take_fires.lua|if bytes <= 0 then|if false then
schedule noted by an old definition|note_fires.lua|if is_same or not is_stored then|if true then
schedule that comes back from its pause|note_fires.lua|'ZADD', FIRES, 'XX', take|'ZADD', FIRES, take
schedule whose missed times count twice|note_fires.lua|elseif outcome ~= 'ask' and time > noted then|elseif outcome ~= 'ask' then
schedule whose error stays|note_fires.lua|failed = error == '' and 0 or|failed = error == '' and tonumber(failed) or
schedule whose error outlives a run|note_fires.lua|    elseif outcome == 'ran' then|    elseif false then
schedule that fails after a success|note_fires.lua|      if time > noted then\n        note_faults|      if true then\n        note_faults
schedule from before the clock was set back|take_fires.lua|if time > now + 60000 then|if false then
schedule that forgets what it sent before two pauses|pause_schedule.lua|before = resumed == time and before or time|before = time
schedule that fails and is not listed|note_fires.lua|    redis.call('ZADD', FAILING_SCHEDULES, 0, schedule)\n|
schedule that sends and is listed as failing|note_fires.lua|    redis.call('ZREM', FAILING_SCHEDULES, schedule)\n|
schedule that is listed as failing after a change|put_schedule.lua|redis.call('ZREM', FAILING_SCHEDULES, schedule)\n|
schedule that is listed as failing during its pause|pause_schedule.lua|  redis.call('ZREM', FAILING_SCHEDULES, schedule)\n|
schedule that is listed as failing after a resume|pause_schedule.lua|if (tonumber(failed) or 0) > 0 then|if true then
schedule with the pause of another|put_schedule.lua|  redis.call('HDEL', PAUSED_SCHEDULES, schedule)\n|
LIST
}

# Prints each bug whose text does not occur exactly once, so that its place is ambiguous.
check() {
    mutants | perl -e '
        my ($bad, %seen) = 0;
        while (<STDIN>) {
            chomp;
            my ($name, $file, $from, $to) = split /\|/, $_, 4;
            s/\\n/\n/g for $from, $to;
            my ($path) = glob "shared/core/src/scripts/*/$file" or die "$name: no script $file\n";
            open my $script, "<", $path or die "$path: $!\n";
            my $times = () = do { local $/; <$script> } =~ /\Q$from\E/g;
            my @faults = ("is twice in the list") x ($seen{$name}++ > 0);
            push @faults, "its text occurs $times times in $file" if $times != 1;
            push @faults, "changes nothing" if $from eq $to;
            print STDERR map "$name: $_\n", @faults;
            $bad += @faults;
        }
        exit($bad > 0);
    '
}

case ${1:-} in
--list)
    mutants
    exit
    ;;
--check)
    check
    exit
    ;;
esac
check

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export RUST_BACKTRACE=0 LISA_MODEL_SHRINK=0
export LISA_MODEL_STEPS=${LISA_MODEL_STEPS:-20000} LISA_MODEL_SEED=${LISA_MODEL_SEED:-1}
# The steps of the model test before the tests of scripts. Most bugs that it finds take fewer.
FEW_STEPS=3000

# One build, which reads the scripts at run time. Optimized, the model takes a third of the time.
it=$(RUSTFLAGS="--cfg lisa_mutants" CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=0 \
    CARGO_TARGET_DIR=${LISA_MUTANTS_TARGET:-target/mutants} \
    cargo test -p lisa-tests --test it --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/it-[^"]*\)".*/\1/p' | tail -n 1)

# Runs tests on the scripts in the folder of this job until one fails. Skips tests of the duration of calls, which find no bugs
# and fail on a busy machine. A bug may make a run endless, so each run has a time limit.
tests() {
    local run
    # Else the loop might read the last run's log.
    : >"$log"
    LISA_MUTANTS_LUA=$lua timeout "${LISA_MUTANTS_SECONDS:-600}" \
        "$it" "$1" --skip longest --skip topologies::reshard:: --nocapture >"$log" 2>&1 &
    run=$!
    while kill -0 "$run" 2>/dev/null; do
        if failed | grep -q .; then kill "$run" 2>/dev/null; fi
        sleep 0.1
    done
    wait "$run"
}

# Prints the names of the tests that have failed.
failed() {
    sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log"
}

plant() { # file, text, replacement
    FROM=$2 TO=$3 perl -0pi -e '
        my ($from, $to) = @ENV{"FROM", "TO"};
        s/\\n/\n/g for $from, $to;
        my $at = index($_, $from);
        die "no such text\n" if $at < 0;
        substr($_, $at, length $from) = $to;
    ' "$1"
}

# The only tests that find bugs whose names have this prefix.
suite_of() {
    case $1 in
    heads*) echo scripts::heads:: ;;
    schedule*) echo scripts:: ;;
    late*) echo scripts::ack_late:: model:: ;;
    hidden*) echo scripts::hide:: model:: ;;
    together*) echo scripts::take_parked:: model:: ;;
    settings*) echo scripts::declare:: ;;
    removal*) echo removal:: ;;
    stats*) echo scripts::stats:: ;;
    "history of all"*) echo scripts::note_total:: ;;
    claim*) echo scripts::claim_topic:: ;;
    audit*) echo scripts::note_action:: ;;
    "move task"*) echo scripts::start_move_task:: ;;
    *token*) echo scripts::change_token:: ;;
    history*) echo scripts::note_sample:: ;;
    resharding*) echo reshard:: ;;
    restoring*) echo reshard::wiped:: ;;
    "moving slot"*) echo topologies::migrating:: ;;
    library*) echo producer::library::a_ ;;
    esac
}

# Prints after how many steps the model test failed. Returns 1 if it did not run.
report_model() { # name
    local steps
    if ! grep -q 'LISA_MODEL_SEED=.* shards:$' "$log"; then
        tail -n 20 "$log"
        echo "$1: the test did not run" >&2
        return 1
    fi
    steps=$(sed -n 's/^after \([0-9]*\) steps.*, \([0-9]*\) shards:$/\1 steps (\2)/p' "$log" | sort -t'(' -k2 | paste -sd, - | sed 's/,/, /')
    printf '%-32s caught after %s\n' "$1" "$steps"
}

# Plants a bug and prints which tests find it. Returns 1 if no test finds it, and 2 if the tests did not run.
try() { # name, file, text, replacement
    local name=$1 script=$lua/$2 suite part by missed=0
    cp "$script" "$lua/kept"
    plant "$script" "$3" "$4"
    suite=$(suite_of "$name")
    if [[ -n $suite ]]; then
        missed=1
        for part in $suite; do
            if ! tests "$part"; then
                by=$(failed | head -n 1)
                printf '%-32s caught by %s\n' "$name" "${by:-a test that does not end}"
                missed=0
                break
            fi
        done
    elif ! LISA_MODEL_STEPS=$FEW_STEPS tests model::; then
        report_model "$name" || missed=2
    elif ! tests scripts::; then
        printf '%-32s caught by %s alone\n' "$name" "$(failed | head -n 1)"
    elif ! tests model::; then
        report_model "$name" || missed=2
    else
        missed=1
    fi
    if ((missed == 1)); then printf '%-32s MISSED\n' "$name"; fi
    cp "$lua/kept" "$script"
    return "$missed"
}

# Tries this job's share of the bugs in its own copy of the scripts. Writes the result of each to a file.
job() { # its number, the number of jobs, a part of the bugs' names
    local at=0 name file from to code
    lua=$work/$1 log=$work/$1.log
    mkdir "$lua"
    cp shared/core/src/scripts/*/*.lua "$lua"
    while IFS='|' read -r name file from to; do
        [[ $name == *"$3"* ]] || continue
        ((at++ % $2 == $1)) || continue
        code=0
        try "$name" "$file" "$from" "$to" || code=$?
        echo "$code" >>"$work/$1.results"
    done < <(mutants)
}

only=${1:-}
parts=$(suite_of "$only")
lua=$work/none log=$work/none.log
mkdir "$lua"
cp shared/core/src/scripts/*/*.lua "$lua"
for part in ${parts:-model:: scripts:: reshard:: topologies::migrating::}; do
    if ! tests "$part"; then
        tail -n 40 "$log"
        echo "$part fails without any bug" >&2
        exit 1
    fi
    if ! grep -q '^test result: ok. [1-9]' "$log"; then
        echo "no test is named $part" >&2
        exit 1
    fi
done
jobs=$(getconf _NPROCESSORS_ONLN)
for ((n = 0; n < jobs; n++)); do job "$n" "$jobs" "$only" & done
wait
caught=$(cat "$work"/*.results | grep -c '^0$' || true)
missed=$(cat "$work"/*.results | grep -vc '^0$' || true)
echo "$caught caught, $missed missed; in brackets the number of shards"
wanted=$(mutants | cut -d'|' -f1 | grep -cF -- "$only" || true)
((caught == wanted && wanted > 0))
