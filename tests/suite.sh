#!/usr/bin/env bash
# Runs the tests of the workspace, or those of some modules of `tests/it`: `suite.sh [MODULE…]`, for example `scripts::send`. Runs
# four per core at the same time because most of them wait. At the end, lists the slowest tests, and what was skipped. If there is
# no cargo-nextest, runs `cargo test`, which lists no slowest tests. LISA_TEST_THREADS sets the number of concurrent tests, and
# LISA_TEST_EXCEPT omits a module.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
threads=${LISA_TEST_THREADS:-$((4 * $(getconf _NPROCESSORS_ONLN)))}
code=0
skips=$(mktemp)
trap 'rm -f "$skips"' EXIT
export LISA_TEST_SKIPS=${LISA_TEST_SKIPS:-$skips}

if $cargo nextest --version >/dev/null 2>&1; then
  report=target/nextest/default/junit.xml
  rm -f "$report"
  filter='all()'
  if [ $# -gt 0 ]; then filter="binary(it) & test(/^($(IFS='|' && echo "$*"))::/)"; fi
  if [ -n "${LISA_TEST_EXCEPT:-}" ]; then filter+=" - test(/^$LISA_TEST_EXCEPT::/)"; fi
  $cargo nextest run --workspace --test-threads "$threads" -E "$filter" || code=$?
  if [ -e "$report" ]; then
    printf '\nthe slowest tests, in seconds:\n'
    sed -n 's/.*<testcase name="\([^"]*\)" classname="\([^"]*\)".* time="\([0-9.]*\)".*/\3 \2 \1/p' "$report" |
      sort -rn | awk 'NR <= 20 { printf "%8.1f  %s %s\n", $1, $2, $3 }'
  fi
  for module in "$@"; do
    if ! grep -q "<testcase name=\"$module::" "$report"; then
      echo "suite.sh: no test in the module $module" >&2
      code=1
    fi
  done
else
  tests=($cargo test --workspace --no-fail-fast)
  if [ $# -gt 0 ]; then tests+=(--test it); else tests+=(--lib --bins --tests); fi
  "${tests[@]}" -- --test-threads "$threads" --skip scripts::longest:: ${@/%/::} || code=$?
  # Tests that measure the duration of calls run alone.
  if [ $# -eq 0 ]; then "${tests[@]}" -- --test-threads 1 scripts::longest:: || code=$?; fi
fi
if [ -s "$skips" ]; then
  printf '\nskipped %s tests: %s\n' "$(wc -l <"$skips")" "$(sed 's/^[^ ]* //' "$skips" | sort | uniq -c | sort -rn | awk '
    { count = $1; $1 = ""; printf "%s%d%s", (NR > 1 ? "; " : ""), count, $0 }')"
fi
exit "$code"
