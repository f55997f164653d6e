#!/usr/bin/env bash
# Tries the upgrade and the rollback of operate/deploy.md on one host, while messages flow. LISA_TEST_OLD_BIN names a folder with
# the programs of the version before; without it, both versions are the same.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
page=operate/deploy.md
runs() { cmp -s "/proc/$(cat "$root/run/$1.pid")/exe" "$2/$1" || fail "$1 does not run the program of $2"; }

programs "$old"
start_all
mkdir bin
/usr/bin/install -t bin "$bin"/lisa-{producer,manager,consumer}
load
run $page Upgrade
for role in producer manager consumer; do runs "lisa-$role" "$bin"; done
run $page Rollback
for role in producer manager consumer; do runs "lisa-$role" "$old"; done
loaded
