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
sed -i 's/orders/mails/' "$LISA_CONFIG"
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
run $page "Remove a topic"
curl -fsS -X PUT -d '{}' "http://127.0.0.1:$manager/v1/topics/receipts" >/dev/null
redis-cli SET unrelated 1 >/dev/null
run $page "Remove a topic" 2
is_unknown() { [ "$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$manager/v1/topics/$1")" = 404 ]; }
eventually is_unknown receipts
keys=$(redis-cli --scan --pattern '*{receipts:*')
[ "$keys $(redis-cli GET unrelated)" = "lisa:v1:{receipts:0}:conf 1" ] || fail "$keys"

printf '[[auth.tokens]]\nname = "admin"\nscopes = ["tokens"]\nsha256 = "%s"\n' "$(printf admin | sha256sum | cut -d ' ' -f 1)" >>"$LISA_CONFIG"
systemctl reload lisa-manager
printf admin >"$root/admin.token"
export LISA_TOKEN_FILE=$root/admin.token
is_guarded() { [ "$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$manager/v1/topics")" = 401 ]; }
eventually is_guarded
run $page "Tokens by call"
run $page "Your own token"
run $page "Your own token" 2
unset LISA_TOKEN_FILE

skip $page systemd 1 "needs systemd and root; make dist-check analyses the units"
skip $page "Containers and Kubernetes" 1 "needs a cluster; make dist-check validates the manifests and the chart"
