#!/usr/bin/env bash
# Tries the rest of operate/deploy.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
page=operate/deploy.md

systemctl start redis-server
eventually redis-cli PING
run_on $page Logs
log=$root/var/log/lisa-manager.log
eventually grep -q . "$log"
run $page Logs 2
[ -s "$log.1" ] || fail "the log was not copied"
# What the role logs from now on begins at the start of the file.
pkill -HUP -g "$running" lisa-manager
eventually grep -q . "$log"
[ "$(head -c 1 "$log")" = "{" ] || fail "the log has a hole"
pkill -g "$running" lisa-manager
wait "$running" || fail "the manager ended with $?"

start_all
send kept 20 1h
run $page "Removing a topic"
redis-cli SET unrelated 1 >/dev/null
run $page "Removing a topic" 2
[ "$(redis-cli --scan --pattern '*orders*' | wc -l)" = 0 ] || fail "keys of the topic are left"
[ "$(redis-cli GET unrelated)" = 1 ] || fail "another key was deleted"
sed -i 's/orders/mails/' "$LISA_CONFIG"
run $page "Removing a topic" 3
[ "$(lisa-manager stats --output json | jq -r '.topics[].topic')" = mails ] || fail "the topic is back"

printf '\n[topics.reports]\n' >>"$LISA_CONFIG"
processes=$(cat "$root"/run/lisa-*.pid)
run $page Reload
has_reports() { lisa-manager stats --output json | jq -e '.topics[] | select(.topic == "reports")'; }
eventually has_reports
[ "$(cat "$root"/run/lisa-*.pid)" = "$processes" ] || fail "a reload started another process"

run $page "Create and change topics at run time"
run $page "Create and change topics at run time" 2
settings() { lisa-manager topics --output json | jq -c --arg topic "$1" '.topics[] | select(.topic == $topic) | [.groups[], .settings.lease]'; }
[ "$(settings invoices) $(settings receipts)" = '["archive","billing","2m"] ["billing","2m"]' ] || fail "$(settings invoices) $(settings receipts)"

skip $page systemd 1 "needs systemd and root; make dist-check analyses the units"
skip $page "Containers and Kubernetes" 1 "needs a cluster; make dist-check validates the manifests and the chart"
