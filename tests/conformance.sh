#!/usr/bin/env bash
# Runs the scenarios and the tests of topologies on each way to run Redis, and prints a table: `tests/conformance.sh
# [--quick] [TOPOLOGY…]`; quick runs a few scenarios, a minute for each, and every test that applies where two ways are combined.
# A test that makes no sense on a topology is skipped and listed with its reason; one that fails, and passes alone, is a
# race, see `tests/suite.sh`.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(redis redis-8 valkey socket tls users sentinel cluster sentinel-tls cluster-tls)
quick=(scenarios::{broadcast,changing,combined,crash,groups,merging,ordering,verbs}::)
scenarios=(scenarios::) topologies=(topologies::) long=1
if [ "${1:-}" = --quick ]; then
  shift
  scenarios=("${quick[@]}") topologies=() long=0
fi
wanted=("${@:-${all[@]}}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The engine and its topology for each name.
engine_of() { case "$1" in redis-8 | valkey) bash fetch-engine.sh "$1" ;; *) echo "${LISA_TEST_ENGINE:-redis-server}" ;; esac; }
topology_of() { case "$1" in redis | redis-8 | valkey) echo single ;; *) echo "$1" ;; esac; }

# Built once, so that edits during the run have no effect.
cargo build --workspace --bins
built=$(cargo test -p lisa-tests --test it --no-run 2>&1) || { echo "$built" >&2; exit 1; }
cp "$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' <<<"$built")" "$work/it"
cp target/debug/lisa-{producer,manager,consumer} "$work/"
export LISA_TEST_BIN_DIR="$work" LISA_TEST_LONG=$long
cd tests
# CI reports the records at its end; otherwise this script does.
reports=${LISA_SUITE_NOTES:+no}
export LISA_SUITE_NOTES=${LISA_SUITE_NOTES:-$work/notes}
rows=() bad=0
for name in "${wanted[@]}"; do
  case " ${all[*]} " in *" $name "*) ;; *) echo "unknown topology $name: ${all[*]}" >&2; exit 2 ;; esac
  engine=$(engine_of "$name")
  version=$("$engine" --version | sed -n 's/.* v=\([0-9.]*\).*/\1/p')
  printf '\n== %s: %s\n' "$name" "$engine $version"
  # The tests of topologies choose their own: one run for each engine is enough.
  filters=("${scenarios[@]}")
  case "$name" in *-tls) filters=("${quick[@]}") ;; esac
  if [ "$(topology_of "$name")" = single ]; then filters+=("${topologies[@]}"); fi
  begun=$SECONDS
  LISA_TEST_ENGINE="$engine" LISA_TEST_TOPOLOGY=$(topology_of "$name") LISA_TEST_SKIPS="$work/$name" \
    "$work/it" "${filters[@]}" 2>&1 | tee "$work/log" || true
  # Failed tests run once more, alone, to find races.
  mapfile -t failed < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$work/log" | sort -u)
  counted=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed.*/\1 \2/p' "$work/log")
  if [ -z "$counted" ]; then
    rows+=("$name $version - - - it did not run")
    bad=1
    continue
  fi
  passed=${counted% *}
  still=()
  for test in "${failed[@]}"; do
    printf '\n== again, alone: %s\n' "$test"
    if LISA_TEST_ENGINE="$engine" LISA_TEST_TOPOLOGY=$(topology_of "$name") "$work/it" --exact "$test"; then
      passed=$((passed + 1))
      bash suite.sh note "$test" "$work/log"
    else
      still+=("$test")
    fi
  done
  skipped=0
  if [ -e "$work/$name" ]; then skipped=$(wc -l <"$work/$name"); fi
  if [ "${#still[@]}" -gt 0 ]; then bad=1; fi
  rows+=("$name $version $((passed - skipped)) ${#still[@]} $skipped $((SECONDS - begun)) ${still[*]:-}")
done

printf '\n%-12s %-8s %7s %7s %9s %6s\n' topology engine passed failed 'left out' s
for row in "${rows[@]}"; do
  read -r name version passed failed skipped seconds which <<<"$row"
  printf '%-12s %-8s %7s %7s %9s %6s  %s\n' "$name" "$version" "$passed" "$failed" "$skipped" "$seconds" "$which"
done
for name in "${wanted[@]}"; do
  if [ -s "$work/$name" ]; then printf '\nleft out on %s:\n' "$name"; sort -u "$work/$name"; fi
done
if [ -z "$reports" ]; then bash suite.sh report || bad=1; fi
exit "$bad"
