#!/usr/bin/env bash
# Checks what config/prometheus and config/grafana ship: the rules with promtool, and every expression of the rules and of the
# dashboard against a real Prometheus that scrapes a relay with traffic. Takes about 40 s. All servers listen on 127.0.0.1.
set -euo pipefail
cd "$(dirname "$0")/../.."

bin="${LISA_TEST_BIN_DIR:-$PWD/target/debug}"
command -v python3 >/dev/null || bash tests/apt-install.sh python3
prometheus=$(bash tests/fetch-package.sh prometheus)
promtool="$(dirname "$prometheus")/promtool"

(cd config/prometheus && "$promtool" check rules rules.yml alerts.yml && "$promtool" test rules alerts_test.yml)
# Checks the names only. It fails within a second if one is wrong.
python3 tests/observability/check.py

dir=$(mktemp -d)
pids=()
finish() {
  kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$dir"
}
trap finish EXIT
free_port() { bash tests/free-port.sh; }
lisa=$(free_port)
web=$(free_port)
cp config/prometheus/rules.yml config/prometheus/alerts.yml "$dir/"
cat >"$dir/lisa.toml" <<'TOML'
[topics.orders]
max_messages = 100000
max_bytes = "64MiB"
max_attempts = 1
[schedules.tick]
topic = "orders"
cron = "* * * * * *"
payload = "tick"
TOML
cat >"$dir/prometheus.yml" <<YAML
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [rules.yml, alerts.yml]
scrape_configs:
  - job_name: lisa
    static_configs: [{ targets: ["127.0.0.1:$lisa"] }]
YAML
# The rules are evaluated as often as the scrapes, so that nothing has to wait for them.
sed -i 's/interval: 15s/interval: 1s/' "$dir/rules.yml"
"$bin/lisa-manager" dev --demo --config "$dir/lisa.toml" --dir "$dir/lisa" --listen "127.0.0.1:$lisa" >"$dir/lisa.log" 2>&1 &
pids+=($!)
"$prometheus" --config.file="$dir/prometheus.yml" --storage.tsdb.path="$dir/data" --web.listen-address="127.0.0.1:$web" \
  --log.level=warn >"$dir/prometheus.log" 2>&1 &
pids+=($!)
if ! python3 tests/observability/check.py "http://127.0.0.1:$lisa" "http://127.0.0.1:$web"; then
  tail -n 20 "$dir/lisa.log" "$dir/prometheus.log" >&2
  exit 1
fi
