#!/usr/bin/env bash
# Tests the running programs against both descriptions: schemathesis sends requests that /openapi.json allows and others,
# and checks every answer against it. `run.sh [FURTHER OPTIONS]`, for example `-n 200` or `--seed 7`.
set -euo pipefail
cd "$(dirname "$0")/../.."

TOKEN=token-of-this-run
python=$(bash tests/venv.sh schemathesis tests/schema/requirements.txt)

bin="${LISA_TEST_BIN_DIR:-$PWD/target/debug}"
dir=$(mktemp -d)
pids=()
finish() {
  kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$dir"
}
trap finish EXIT

free_port() { bash tests/free-port.sh; }
producer=$(free_port)
manager=$(free_port)
cat >"$dir/lisa.toml" <<TOML
redis.url = "unix://$dir/redis.sock"
producer.listen = "127.0.0.1:$producer"
manager.listen = "127.0.0.1:$manager"
[topics.orders]
groups = ["billing", "audit"]
max_payload = "64KiB"
[[auth.tokens]]
name = "all"
sha256 = "$(printf '%s' "$TOKEN" | sha256sum | cut -d' ' -f1)"
scopes = ["send", "read", "operate", "tokens"]
TOML
redis-server --port 0 --unixsocket "$dir/redis.sock" --dir "$dir" --save '' --appendonly no >"$dir/redis.log" &
pids+=($!)
for role in producer manager; do
  LISA_LOG=warn "$bin/lisa-$role" run --config "$dir/lisa.toml" 2>"$dir/$role.log" &
  pids+=($!)
done

# Once with any names, once with existing ones.
known="$dir/known.toml"
any="$PWD/tests/schema/schemathesis.toml"
export SCHEMATHESIS_HOOKS="$PWD/tests/schema/hooks.py"
cat "$any" - >"$known" <<TOML
[parameters]
"path.topic" = "orders"
"path.group" = "billing"
"path.name" = "sweep"
"path.token" = "team"
TOML

failed=0
for role in producer manager; do
  for names in "$any" "$known"; do
    printf '\n== %s, %s\n' "$role" "$(basename "$names" .toml)"
    (cd "$dir" && "${python%/*}/schemathesis" --config-file "$names" run --wait-for-schema 20 -H "Authorization: Bearer $TOKEN" "$@" \
      "http://127.0.0.1:${!role}/openapi.json") || failed=1
  done
  # A defect that the programs log is a defect, whatever the answer was.
  if grep '"ERROR"' "$dir/$role.log"; then failed=1; fi
done
exit $failed
