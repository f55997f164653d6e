#!/usr/bin/env bash
# Lints the package of each role alone, with the sets of features that users choose: `features.sh [--quick]`. With --quick, only
# the most common sets. Cargo unifies the features of all packages in a build, so a package that lacks a feature or a dependency
# compiles in the workspace and fails for its users.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

# A package and a set of its features on each line. A build of the workspace enables all of these but `kafka-tls`.
sets='
lisa-producer
lisa-producer http
lisa-producer cli
lisa-consumer
lisa-consumer sink-stdout
lisa-consumer sink-redis-stream
lisa-consumer cli
lisa-manager
'
if [ "${1:-}" != --quick ]; then
  sets+='
lisa-producer otel-api
lisa-producer otel
lisa-producer source-amqp
lisa-producer source-nats
lisa-producer source-kafka
lisa-consumer sink-http
lisa-consumer gateway
lisa-consumer otel-api
lisa-consumer otel
lisa-consumer sink-command
lisa-consumer sink-amqp
lisa-consumer sink-nats
lisa-consumer sink-kafka
lisa-consumer kafka-tls
lisa-manager otel
lisa-manager test-util
lisa-manager keda
lisa-manager kafka-tls
'
fi

failed=()
while read -r package features; do
  [ -n "$package" ] || continue
  began=$SECONDS result=ok
  $cargo clippy --quiet -p "$package" --no-default-features --features "$features" -- -D warnings || result=FAILED
  printf '%-14s %-18s %-6s %s s\n' "$package" "${features:-(none)}" "$result" $((SECONDS - began))
  if [[ $result != ok ]]; then failed+=("$package ${features:-(none)}"); fi
done <<<"$sets"

if ((${#failed[@]} > 0)); then
  printf 'clippy fails on this package alone: %s\n' "${failed[@]}" >&2
  exit 1
fi
