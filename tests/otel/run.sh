#!/usr/bin/env bash
# Checks the spans of the real programs against the conventions of OpenTelemetry, with a receiver of OTLP that is not ours: it decodes
# with the package `opentelemetry-proto`. Takes about a minute. All servers listen on 127.0.0.1.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=$(bash tests/venv.sh otel tests/otel/requirements.txt)
dir=$(mktemp -d)
redis=
finish() {
  if [ -n "$redis" ]; then kill "$redis" 2>/dev/null || true; fi
  wait
  rm -rf "$dir"
}
trap finish EXIT
redis-server --port 0 --unixsocket "$dir/redis.sock" --dir "$dir" --save '' --appendonly no >"$dir/redis.log" &
redis=$!
PYTHONDONTWRITEBYTECODE=1 "$python" tests/otel/check.py "${LISA_TEST_BIN_DIR:-$PWD/target/debug}" "$dir"
