#!/usr/bin/env bash
# Lints each package alone, with the sets of features that users ask for: `features.sh [--quick]`, where quick takes the most
# frequent ones. Cargo unites the features of all packages of a build, so a package that lacks a feature or a dependency compiles
# in the workspace and fails for its users.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

# A package, and a set of its features on each line. The workspace itself has all of them but `kafka-tls`.
sets='
lisa-producer
lisa-producer http
lisa-producer cli
lisa-consumer
lisa-consumer sink-stdout
lisa-consumer sink-redis-stream
lisa-consumer sink-http
lisa-consumer gateway
lisa-consumer cli
lisa-manager
'
if [ "${1:-}" != --quick ]; then
  sets+='
lisa-producer source-amqp
lisa-producer source-nats
lisa-producer source-kafka
lisa-consumer sink-command
lisa-consumer sink-amqp
lisa-consumer sink-nats
lisa-consumer sink-kafka
lisa-manager test-util
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
  printf 'fails alone: %s\n' "${failed[@]}" >&2
  exit 1
fi
