#!/usr/bin/env bash
# Checks the spans of the real programs against the conventions of OpenTelemetry, with a receiver of OTLP that is not ours: it decodes
# with the package `opentelemetry-proto`. Takes about a minute. All servers listen on 127.0.0.1.
set -euo pipefail
cd "$(dirname "$0")/../.."

venv="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/otel"
pins=tests/otel/requirements.txt
if ! cmp -s "$pins" "$venv/.pins"; then
  if ! python3 -c "import ensurepip" 2>/dev/null; then bash tests/apt-install.sh python3-venv; fi
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$pins"
  cp "$pins" "$venv/.pins"
fi
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
PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" tests/otel/check.py "${LISA_TEST_BIN_DIR:-$PWD/target/debug}" "$dir"
