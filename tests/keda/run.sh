#!/usr/bin/env bash
# Tests the external scaler of the running programs as KEDA calls it: with a client that gRPC's own tools generate from the
# interface. `run.sh [OPTIONS OF PYTEST]`, for example `-k stream`.
set -euo pipefail
cd "$(dirname "$0")/../.."

# A Python that has gRPC and the tools that generate its clients.
python=$(bash tests/venv.sh keda tests/keda/requirements.txt)
bin="${LISA_TEST_BIN_DIR:-$PWD/target/debug}"
dir=$(mktemp -d)
pids=()
finish() {
  local code=$?
  kill "${pids[@]}" 2>/dev/null || true
  wait
  if [ "$code" -ne 0 ]; then tail -n 20 "$dir"/*.log >&2; fi
  rm -rf "$dir"
  exit "$code"
}
trap finish EXIT

"$python" -m grpc_tools.protoc -I tests/keda --python_out="$dir" --grpc_python_out="$dir" externalscaler.proto
for role in producer manager consumer gateway scaler secured; do
  declare "$role=$(bash tests/free-port.sh)"
  export "LISA_TEST_${role^^}=${!role}"
done
hash() { printf '%s' "$1" | sha256sum | cut -d' ' -f1; }
cat >"$dir/lisa.toml" <<TOML
redis.url = "unix://$dir/redis.sock"
producer.listen = "127.0.0.1:$producer"
manager.listen = "127.0.0.1:$manager"
manager.keda.listen = "127.0.0.1:$scaler"
consumer.listen = "127.0.0.1:$consumer"
consumer.gateway.listen = "127.0.0.1:$gateway"
[topics.orders]
groups = ["billing"]
[topics.pushed]
[topics.shared]
groups = ["billing", "audit"]
[[auth.tokens]]
name = "all"
sha256 = "$(hash all)"
scopes = ["send", "read", "operate", "receive"]
[[auth.tokens]]
name = "shop"
sha256 = "$(hash shop)"
scopes = ["send"]
[[auth.tokens]]
name = "team"
sha256 = "$(hash team)"
scopes = ["read"]
topics = ["shared"]
[[auth.tokens]]
name = "old"
sha256 = "$(hash old)"
scopes = ["read"]
expires = 2020-01-01T00:00:00Z
TOML
redis-server --port 0 --unixsocket "$dir/redis.sock" --dir "$dir" --save '' --appendonly no >"$dir/redis.log" &
pids+=($!)
# Another manager, whose listeners speak TLS.
"$python" -m trustme --quiet --dir "$dir" --identities 127.0.0.1
LISA_LOG=warn LISA_HTTP__TLS__CERT_FILE=$dir/server.pem LISA_HTTP__TLS__KEY_FILE=$dir/server.key \
  LISA_MANAGER__KEDA__LISTEN=127.0.0.1:$secured \
  "$bin/lisa-manager" run --config "$dir/lisa.toml" --listen "127.0.0.1:$(bash tests/free-port.sh)" 2>"$dir/secured.log" &
pids+=($!)
export LISA_TEST_CA=$dir/client.pem
for role in producer manager consumer; do
  LISA_LOG=warn "$bin/lisa-$role" run --config "$dir/lisa.toml" 2>"$dir/$role.log" &
  pids+=($!)
done

PYTHONPATH="$dir" PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -q -p no:cacheprovider tests/keda "$@"
# A defect that the programs log is a defect, whatever the answer was.
if grep '"ERROR"' "$dir"/{producer,manager,consumer,secured}.log; then exit 1; fi
