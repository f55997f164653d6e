#!/usr/bin/env bash
# Runs the tests of the workspace, four for each core at a time because most of them wait: `suite.sh [OPTION…]`, with options of
# `cargo nextest run`. Ends with the slowest tests, and with what was skipped. Without cargo-nextest, and then without options,
# runs `cargo test`. LISA_TEST_THREADS sets the number of tests at a time.
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
  $cargo nextest run --workspace --test-threads "$threads" "$@" || code=$?
  if [ -e "$report" ]; then
    printf '\nthe slowest tests, in seconds:\n'
    sed -n 's/.*<testcase name="\([^"]*\)" classname="\([^"]*\)".* time="\([0-9.]*\)".*/\3 \2 \1/p' "$report" |
      sort -rn | sed 20q | awk '{ printf "%8.1f  %s %s\n", $1, $2, $3 }'
  fi
elif [ $# -gt 0 ]; then
  echo "suite.sh: no cargo-nextest on the PATH, which these options are for: $*" >&2
  exit 2
else
  tests=($cargo test --workspace --no-fail-fast --lib --bins --tests --)
  "${tests[@]}" --test-threads "$threads" --skip scripts::longest:: || code=$?
  # Tests that measure the machine run alone.
  "${tests[@]}" --test-threads 1 scripts::longest:: || code=$?
fi
if [ -s "$skips" ]; then
  printf '\nskipped: %s\n' "$(sed 's/^[^ ]* //' "$skips" | sort | uniq -c | sort -rn | awk '
    { count = $1; $1 = ""; printf "%s%d test%s:%s", (NR > 1 ? "; " : ""), count, (count > 1 ? "s" : ""), $0 }')"
fi
exit "$code"
