#!/usr/bin/env bash
# Checks the systemd units: `units.sh [BIN]`. Their exposure, their syntax with each drop-in, and, with built programs, that the
# system calls of each role are allowed. Starts no unit, so systemd need not run.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
units=$tests/../config/systemd
bin=${1:-}
need systemd-analyze systemd

root=$work/root
mkdir -p "$root"/{etc/systemd/system,lib/systemd,usr/bin}
cp -r /lib/systemd/system "$root/lib/systemd/"
cp "$units"/*.service "$root/etc/systemd/system/"
# The units name these.
for program in lisa-{producer,manager,consumer} kill; do cp /bin/true "$root/usr/bin/$program"; done
check() { # unit, highest exposure times ten
  systemd-analyze security --offline=yes --root="$root" --threshold="$2" "$1" >"$work/security.log" || fail "the exposure of $1"
  systemd-analyze verify --man=no --root="$root" "$1" >"$work/verify.log" 2>&1 || fail "$1"
  [ ! -s "$work/verify.log" ] || fail "a warning about $1"
  ok "$1: $(sed -n 's/.*exposure level for .*: \([0-9.]* [A-Z]*\).*/exposure \1/p' "$work/security.log")"
}
for role in producer manager consumer; do check "lisa-$role.service" 20; done
# All roles have one drop-in for the password.
mkdir "$root"/etc/systemd/system/lisa-{,consumer}.service.d
cp "$units/redis-password.conf" "$root/etc/systemd/system/lisa-.service.d/"
for role in producer manager consumer; do check "lisa-$role.service" 20; done
cp "$units/consumer-commands.conf" "$root/etc/systemd/system/lisa-consumer.service.d/commands.conf"
check lisa-consumer.service 20

[ -n "$bin" ] || exit 0
need strace
need curl
redis
export LISA_REDIS_URL=redis://127.0.0.1:$port
for role in producer manager consumer; do
  at=$(bash "$tests/free-port.sh")
  export "LISA_${role^^}__LISTEN=127.0.0.1:$at"
  background "$role" strace -f -qq -o "$work/$role.calls" "$bin/lisa-$role" run --config "$tests/../config/separate.toml"
  eventually route "$at" /readyz 200
done
"$bin/lisa-producer" send orders '{"order": 7}' --id order-7 >/dev/null
eventually grep -q order-7 "$work/consumer.log"
for child in "${children[@]:1}"; do kill "$(pgrep -P "$child")" && wait "$child"; done
python3 - "$units" "$work" <<'PY'
import re, subprocess, sys

units, work = sys.argv[1:]
groups, name = {}, None
for line in subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True).stdout.splitlines():
    if line.startswith("@"):
        groups[name := line.strip()] = []
    elif name and line.strip() and not line.strip().startswith("#"):
        groups[name].append(line.strip())


def calls(names):
    for one in names:
        yield from calls(groups[one]) if one.startswith("@") else [one]


for role in "producer", "manager", "consumer":
    allowed = set()
    for value in re.findall(r"^SystemCallFilter=(.*)$", open(f"{units}/lisa-{role}.service").read(), re.M):
        if value.startswith("~"):
            allowed -= set(calls(value[1:].split()))
        else:
            allowed |= set(calls(value.split()))
    # strace shows the call that starts the program as well.
    used = set(re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)[( ]", open(f"{work}/{role}.calls").read(), re.M))
    if used - allowed:
        sys.exit(f"FAILED: the unit of the {role} does not allow {', '.join(sorted(used - allowed))}")
    print(f"ok: the unit of the {role} allows its {len(used)} system calls")
PY
