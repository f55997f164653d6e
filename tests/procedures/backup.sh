#!/usr/bin/env bash
# Tries operate/backup.md: backs up in each way, goes on, loses everything, and restores.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
page=operate/backup.md
acked() { counts '.counters."acked:billing" // .counters.acked' "$1"; }
times() { [ "$(delivered | grep -c "^$1\$")" = "$2" ]; }

start_all
send kept 50 1h
send done 20 0s
eventually acked 20
run $page "Back up with a snapshot"
[ -s "$root/var/backups/lisa/lisa.rdb" ] || fail "no snapshot"
run $page "Back up with a snapshot" 2
run $page "Back up the append-only file"
run $page "Try a backup"

# After the backups: new messages, a cancel, and a delivery.
for kind in snapshot append-only; do
  send "late-$kind" 30 1h
  lisa-manager cancel orders kept-1 >/dev/null
  lisa-manager deliver-now orders kept-2 >/dev/null
  if [ $kind = snapshot ]; then again=1; else again=2; fi
  eventually times kept-2 $again

  run $page Restore 1
  run $page Restore 2
  case $kind in
    snapshot) run $page "Restore a snapshot" ;;
    append-only) run $page "Restore an append-only file" ;;
  esac
  run $page Restore 3
  counts .waiting 50 || fail "$(count .waiting) messages wait after the restore, not the 50 of the backup"
  conserved
  run $page Restore 4
  run $page Restore 5
  lisa-manager messages show orders kept-1 >/dev/null || fail "a cancelled message is not back"
  ! lisa-manager messages show orders "late-$kind-1" >/dev/null 2>&1 || fail "a message is there that was sent after the backup"
  # The backup contains the ended ids, too.
  send done 20 0s
  counts .counters.duplicates 20 || fail "ended ids are not remembered"
  rm -rf "$root/var/lib/redis/before"
  ok "restored from the $kind backup"
done
times done-1 1 || fail "a message that ended before the backup was delivered again"
lisa-manager deliver-now orders kept-2 >/dev/null
eventually times kept-2 3
ok "a message that was delivered after the backup is delivered again"
# What Redis wrote after the restore survives its restart.
systemctl stop redis-server
systemctl start redis-server
eventually counts .waiting 49
