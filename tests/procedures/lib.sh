# Runs the commands of the book as an operator would. Sourced by the scripts of this folder, each of which tries the procedures of a page.
#
# `run PAGE HEADING [N]` takes the N-th block of shell commands below a heading of a page and runs it as written, in a folder of its
# own. Only paths and ports are replaced: /etc, /var and /usr/local are in the sandbox, and the servers listen on free ports. So a
# page and its script cannot differ. `run.sh` checks that each block of the pages in operate/ is run or skipped with a reason.
#
# The sandbox has stand-ins for the programs that need root or systemd: sudo, chown, install and systemctl. The latter runs the
# ExecStart of the unit in config/systemd, and waits until the role is ready.
# shellcheck shell=bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tests=$(dirname "$here")
docs=$tests/../shared/docs
bin=${LISA_TEST_BIN_DIR:-$tests/../target/debug}
bin=$(cd "$bin" && pwd)
# The programs of the version before, for the upgrade.
old=${LISA_TEST_OLD_BIN:-$bin}
server=${LISA_REDIS_SERVER:-$(command -v redis-server || command -v valkey-server)}
work=$(mktemp -d)
root=$work/root
covered=${LISA_TEST_COVERED:-$work/covered}

finish() {
  local code=$? pid
  [ -e "$root/loading" ] && rm -f "$root/loading"
  for pid in "$root"/run/*.pid; do [ ! -e "$pid" ] || kill "$(cat "$pid")" 2>/dev/null || true; done
  # Servers that a procedure started in the background.
  for pid in "$work"/*.server; do
    [ ! -e "$pid" ] || "$redis_cli" -p "$(cat "$pid")" SHUTDOWN NOSAVE >/dev/null 2>&1 || true
  done
  jobs -p | xargs -r kill 2>/dev/null || true
  [ -z "${running:-}" ] || kill -- "-$running" 2>/dev/null || true
  if [ "$code" -ne 0 ]; then
    for log in "$root"/var/log/*.log "$work/block.log"; do
      if [ -s "$log" ]; then printf '== %s\n' "$log" && tail -n 15 "$log" | cut -c 1-400; fi
    done >&2
  fi
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
ok() { echo "ok: $*"; }

# Waits up to 60 s until a command succeeds.
eventually() {
  for _ in $(seq 600); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  fail "not within 60 s: $*"
}

redis_cli=$(command -v redis-cli || command -v valkey-cli)
# The topic of the messages that the functions below send and count.
topic=orders
port=$(bash "$tests/free-port.sh")
producer=$(bash "$tests/free-port.sh")
manager=$(bash "$tests/free-port.sh")
consumer=$(bash "$tests/free-port.sh")
scratch=$(bash "$tests/free-port.sh")
mkdir -p "$root"/{bin,run,home,etc/lisa,etc/redis,var/lib/redis,var/backups,var/log,usr/local/bin,usr/local/lib}
echo "$port" >"$work/redis.server"
echo "$scratch" >"$work/scratch.server"

stand_in() { # name, text
  { echo '#!/usr/bin/env bash' && cat; } >"$root/bin/$1"
  chmod +x "$root/bin/$1"
}
stand_in sudo <<'END'
while [[ ${1:-} == -* ]]; do if [ "$1" = -u ]; then shift 2; else shift; fi; done
exec "$@"
END
stand_in chown <<'END'
END
stand_in install <<'END'
arguments=()
while [ $# -gt 0 ]; do case $1 in -o | -g) shift 2 ;; *) arguments+=("$1") && shift ;; esac; done
exec /usr/bin/install "${arguments[@]}"
END
stand_in redis-cli <<END
case " \$* " in *" -p "*) exec $redis_cli "\$@" ;; *) exec $redis_cli -p $port "\$@" ;; esac
END
stand_in systemctl <<END
root=$root units=$tests/../config/systemd
declare -A ports=([lisa-producer]=$producer [lisa-manager]=$manager [lisa-consumer]=$consumer)
END
cat >>"$root/bin/systemctl" <<'END'
runs() { [ -e "$root/run/$1.pid" ] && kill -0 "$(cat "$root/run/$1.pid")" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$(cat "$root/run/$1.pid")/status"; }
stop() {
  runs "$1" || return 0
  kill "$(cat "$root/run/$1.pid")"
  for _ in $(seq 350); do runs "$1" || return 0; sleep 0.1; done
  echo "$1 did not stop within 35 s" >&2
  return 1
}
start() {
  local command
  ! runs "$1" || return 0
  case $1 in
    redis-server) command="redis-server $root/etc/redis/redis.conf" ;;
    *) command=$(sed -n 's/^ExecStart=//p' "$units/$1.service") && command=${command//\/etc/$root/etc} ;;
  esac
  # shellcheck disable=SC2086
  setsid $command >>"$root/var/log/$1.log" 2>&1 &
  echo $! >"$root/run/$1.pid"
  [ -n "${ports[$1]:-}" ] || return 0
  for _ in $(seq 600); do
    runs "$1" || { echo "$1 ended: $(tail -n 1 "$root/var/log/$1.log")" >&2; return 1; }
    if curl -sf "http://127.0.0.1:${ports[$1]}/readyz" >/dev/null; then return 0; fi
    sleep 0.1
  done
  echo "$1 was not ready within 60 s" >&2
  return 1
}
action=$1 && shift
for unit in "$@"; do
  case $unit in --*) continue ;; esac
  unit=${unit%.service}
  case $action in
    start | enable) start "$unit" ;;
    stop) stop "$unit" ;;
    reload) MAINPID=$(cat "$root/run/$unit.pid") bash -c "$(sed -n 's/^ExecReload=//p' "$units/$unit.service")" ;;
    restart) stop "$unit" && start "$unit" ;;
    *) echo "no stand-in for systemctl $action" >&2 && exit 1 ;;
  esac || exit 1
done
END
cat "$tests/../config/redis.conf" - >"$root/etc/redis/redis.conf" <<END
port $port
bind 127.0.0.1
dir $root/var/lib/redis
END
cat >"$root/etc/lisa/lisa.toml" <<END
[redis]
url = "redis://127.0.0.1:$port"
[producer]
listen = "127.0.0.1:$producer"
[manager]
listen = "127.0.0.1:$manager"
[consumer]
listen = "127.0.0.1:$consumer"
[topics.orders]
groups = ["billing"]
[[consumer.subscriptions]]
topic = "orders"
group = "billing"
sink = { type = "stdout" }
END

# Installs the programs of a version: `programs FOLDER`.
programs() { /usr/bin/install -t "$root/usr/local/bin" "$1"/lisa-{producer,manager,consumer}; }
programs "$bin"
export PATH="$root/bin:$root/usr/local/bin:$PATH" LISA_CONFIG="$root/etc/lisa/lisa.toml" HOME="$root/home"
cd "$root/home"

# Prints a block of shell commands of a page: `block PAGE HEADING [N]`.
block() {
  awk -v heading="$2" -v want="${3:-1}" '
    /^ *```/ {
      if (fenced) { fenced = 0; next }
      fenced = 1; indent = match($0, /`/); is_sh = $0 ~ /```sh$/
      if (is_sh && title == heading) n++
      next
    }
    !fenced && /^#+ / { title = $0; sub(/^#+ /, "", title); next }
    fenced && is_sh && title == heading && n == want { print substr($0, indent) }' "$docs/$1"
}

# Replaces the paths and ports of a machine by those of the sandbox.
placed() {
  sed -E -e "s#(^|[ \"'=>(])/(etc|var|usr/local)/#\1$root/\2/#g" -e "s/\b7811\b/$producer/g; s/\b7812\b/$manager/g" \
    -e "s/\b7813\b/$consumer/g; s/\b6380\b/$scratch/g"
}

# Reads a block, and notes that it is covered.
take() {
  local text
  text=$(block "$@")
  [ -n "$text" ] || fail "no block ${3:-1} of shell commands below \"$2\" in $1"
  echo "$1#$2#${3:-1}" >>"$covered"
  placed <<<"$text"
}

# Runs a block as written: `run PAGE HEADING [N]`.
run() {
  take "$@" >"$work/block.sh"
  bash -euo pipefail -x "$work/block.sh" >"$work/block.log" 2>&1 </dev/null || fail "block ${3:-1} of \"$2\" in $1"
  ok "$1: $2${3:+, block $3}"
}

# Runs a block that does not end by itself in the background, as the process group `running`.
run_on() {
  take "$@" >"$work/background.sh"
  setsid bash -euo pipefail "$work/background.sh" >/dev/null &
  running=$!
  ok "$1: $2${3:+, block $3} runs"
}

# Runs a block line by line, and compares the exit codes: `codes PAGE HEADING N CODE…`.
codes() {
  local line code expected=("${@:4}") seen=()
  while IFS= read -r line; do
    code=0
    bash -uo pipefail -c "$line" >>"$work/block.log" 2>&1 </dev/null || code=$?
    seen+=("$code")
  done < <(take "$1" "$2" "$3")
  [ "${seen[*]}" = "${expected[*]}" ] || fail "$1: $2: exit codes ${seen[*]} instead of ${expected[*]}"
  ok "$1: $2, block $3"
}

# Checks that the programs know the verbs and options of a block, without running it: for lists of examples.
parse() {
  take "$@" | sed "s#^#$1\t#" | known >/dev/null || fail "$1: $2"
  ok "$1: $2${3:+, block $3}: the programs know these commands"
}
known() { python3 "$here/known.py"; }

# Skips a block that cannot run here: `skip PAGE HEADING N REASON`.
skip() {
  take "$1" "$2" "$3" >/dev/null
  echo "== SKIPPED: $1: $2, block $3: $4"
  if [ -n "${LISA_CI_NOTES:-}" ]; then echo "procedures: $1: $2: $4" >>"$LISA_CI_NOTES/skipped"; fi
}

# Starts Redis and the roles as the units do.
start_all() {
  systemctl start redis-server
  eventually redis-cli PING
  systemctl start lisa-manager lisa-consumer lisa-producer
}

# Sends messages with the ids PREFIX-1 to PREFIX-N: `send PREFIX N DELAY`.
send() {
  seq "$2" | sed "s/.*/{\"id\": \"$1-&\", \"delay\": \"$3\", \"payload\": \"x\"}/" |
    curl -sf --retry 5 --retry-connrefused -H 'Content-Type: application/x-ndjson' --data-binary @- \
      "http://127.0.0.1:$producer/v1/topics/$topic/messages:batch" >/dev/null || fail "the batch $1 was not accepted"
}

# A number from the counts of the topic: `count '.waiting'`, with a path of jq.
count() { lisa-manager stats --output json 2>/dev/null | jq ".topics[] | select(.topic == \"$topic\") | $1"; }
counts() { [ "$(count "$1")" = "$2" ]; }

# The ids that the consumer printed, one for each delivery.
delivered() { jq -rR 'fromjson? | select(.attempt) | .id' "$root/var/log/lisa-consumer.log" | sort; }

# Sends one message after the other in the background until `loaded` is called; repeats each until a producer takes it.
loads=0
load() {
  loads=$((loads + 1))
  touch "$root/loading"
  (
    n=0
    while [ -e "$root/loading" ]; do
      n=$((n + 1))
      until curl -sf -o /dev/null -H "Lisa-Id: load-$loads-$n" -H 'Lisa-Delay: 300ms' -d x "http://127.0.0.1:$producer/v1/topics/$topic/messages"; do
        sleep 0.05
      done
      echo "load-$loads-$n" >>"$work/sent"
      sleep 0.01
    done
  ) &
  loader=$!
}

# Ends the load, and checks that each message was delivered exactly once and that all counts add up.
loaded() {
  rm -f "$root/loading"
  wait "$loader"
  eventually drained
  delivered | grep '^load-' >"$work/delivered" || true
  sort "$work/sent" | diff -q - "$work/delivered" >/dev/null ||
    fail "$(wc -l <"$work/sent") sent, $(wc -l <"$work/delivered") delivered: $(sort "$work/sent" | diff - "$work/delivered" | head -n 5)"
  conserved
  ok "$(grep -c "^load-$loads-" "$work/sent") messages sent meanwhile, each delivered once"
}
drained() { counts '.waiting + ([.groups[] | .backlog + .parked + .ready + .in_flight + .retry] | add)' 0; }
conserved() { counts .conservation_error 0 || fail "conservation_error is $(count .conservation_error)"; }
