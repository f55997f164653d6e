#!/usr/bin/env bash
# Plants one bug after the other in a copy of the scripts. The model test must fail each time; or, for a bug that shows
# only when two calls meet, a test of that script.
# Not part of `make test`: each bug is a build. LISA_MODEL_STEPS bounds the search (20000), LISA_MODEL_SEED begins it (1);
# an argument chooses bugs by a part of their names. LISA_MUTANTS_TARGET may name a cargo target folder to build in.
set -euo pipefail
cd "$(dirname "$0")/.."

# name | file below shared/src/scripts | text | what takes its place (the first occurrence; \n is a line break)
mutants() {
    cat <<'LIST'
early by 1 ms|move_due_plain.lua|'ZRANGE', zset, '-inf', now,|'ZRANGE', zset, '-inf', now + 1,
rank off by one|move_due_plain.lua|WAITING, 0, from_waiting - 1|WAITING, 0, from_waiting
retry before waiting|move_due_plain.lua|<= tonumber(retry[r + 1])|< tonumber(retry[r + 1])
moved counter forgotten|move_due_plain.lua|redis.call('HINCRBY', STATS, 'moved:' .. group, from_waiting)|
pause ignored by the mover|move_due_plain.lua|if conf[2] then|if false then
crashes not carried|move_due_plain.lua|if crashes > 0 then|if false then
pause ignored by send|send_plain.lua|local open = not conf[2]|local open = true
duplicates overwrite|send_plain.lua|if stored[i] or ended[i] then|if ended[i] then
tombstones ignored by send|send_plain.lua|if stored[i] or ended[i] then|if stored[i] then
wake forgotten by send|send_plain.lua|wake(WAKE, STATS, stats[2], earliest)|
payload kept at ack|ack_plain.lua|redis.call('HDEL', PAYLOAD, unpack(ids))|
stale acks count|ack_plain.lua|if acked < n then|if false then
tombstone missing at ack|ack_plain.lua|* 3 + 2] == '1' then|* 3 + 2] == '2' then
no fence in settle|settle.lua|redis.call('XACK', READY, group, entry) == 0|redis.call('XACK', READY, group, entry) == -1
retry counted at defer|settle.lua|write_attempts(ATTEMPTS, id, attempts, 0, last_error)|write_attempts(ATTEMPTS, id, attempts + 1, 0, last_error)
one attempt too many|settle.lua|attempts + 1 >= max_attempts|attempts >= max_attempts
entry kept at settle|settle.lua|redis.call('XDEL', READY, entry)|
payload not asked for in settle|settle.lua|if redis.call('HEXISTS', PAYLOAD, id) == 0 then|if false then
reclaim without the idle check|reclaim.lua|group, 'IDLE', lease, entry|group, 'IDLE', 0, entry
every crash charged|reclaim.lua|elseif crashes == 0 then|else
attempts kept in garbage|reclaim.lua|redis.call('HDEL', ATTEMPTS, id)\n        bury|bury
tombstone missing at cancel|cancel.lua|entomb(TOMB, id, now, 1)|
attempts left at cancel|cancel.lua|redis.call('HDEL', ATTEMPTS, id)|
cancel of what is held|cancel.lua|return {'in_flight'}|waiting = '0'
wake forgotten by reschedule|reschedule.lua|wake(WAKE, STATS, stats[2], due)|
outdated requeue|requeue.lua|redis.call('ZSCORE', GARBAGE, id)) == time|redis.call('ZSCORE', GARBAGE, id))
requeue keeps the reason|requeue.lua|redis.call('HDEL', DEAD, id)|
payload kept at purge|purge.lua|redis.call('HDEL', PAYLOAD, id)|
tombstones dropped too soon|clean.lua|(now - window) * 4|(now - window + 1) * 4
held entries recovered|clean.lua|entry[1], entry[1], 1) == 0|entry[1], entry[1], 1) >= 0
last time not held|_prelude.lua|last - now <= 1000|last - now <= 0
past instants not lifted to now|_prelude.lua|math.max(-when, now)|-when
LIST
}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R Cargo.toml Cargo.lock shared producer manager consumer tests "$copy"
export CARGO_TARGET_DIR=${LISA_MUTANTS_TARGET:-$copy/target} RUST_BACKTRACE=0 LISA_MODEL_SHRINK=0
export LISA_MODEL_STEPS=${LISA_MODEL_STEPS:-20000} LISA_MODEL_SEED=${LISA_MODEL_SEED:-1}
cd "$copy"
# The other tests would only be built in vain.
printf '//! Only these.\n\nmod model;\nmod scripts;\n' >tests/it/main.rs

tests() { cargo test --quiet -p lisa-tests --test it -- "$1" --nocapture >tests.log 2>&1; }

plant() { # file, text, replacement
    FROM=$2 TO=$3 perl -0pi -e '
        my ($from, $to) = @ENV{"FROM", "TO"};
        s/\\n/\n/g for $from, $to;
        my $at = index($_, $from);
        die "no such text\n" if $at < 0;
        substr($_, $at, length $from) = $to;
    ' "$1"
}

for part in model:: scripts::; do
    if ! tests $part; then
        tail -n 40 tests.log
        echo "$part fails without any bug" >&2
        exit 1
    fi
done
caught=0 missed=0
while IFS='|' read -r name file from to; do
    [[ $# -eq 0 || $name == *"$1"* ]] || continue
    script=shared/src/scripts/$file
    cp "$script" kept.lua
    plant "$script" "$from" "$to"
    caught=$((caught + 1))
    if tests model::; then
        if tests scripts::; then
            caught=$((caught - 1)) missed=$((missed + 1))
            printf '%-32s MISSED\n' "$name"
        else
            by=$(sed -n 's/^    \(scripts::.*\)$/\1/p' tests.log | sort -u | head -n 1)
            printf '%-32s caught by %s alone\n' "$name" "$by"
        fi
    elif grep -q 'LISA_MODEL_SEED=.* shards:$' tests.log; then
        steps=$(sed -n 's/^after \([0-9]*\) steps.*, \([0-9]*\) shards:$/\1 steps (\2)/p' tests.log | sort -t'(' -k2 | paste -sd, - | sed 's/,/, /')
        printf '%-32s caught after %s\n' "$name" "$steps"
    else
        tail -n 20 tests.log
        echo "$name: the test did not run" >&2
        exit 1
    fi
    cp kept.lua "$script"
done < <(mutants)
echo "$caught caught, $missed missed; in brackets the number of shards"
[ "$missed" -eq 0 ]
