#!/usr/bin/env bash
# Runs test commands for CI. A test that fails, and passes when it runs alone three times, is a race: it is always printed.
#   tests/suite.sh run COMMAND...  runs the command; ends with 1 if a test fails alone, too, or more than five fail
#   tests/suite.sh note TEST LOG   records that a test failed, as the log shows, and passed alone
#   tests/suite.sh report          prints each race with the output of its first failure; ends with 1 if a test of a promise
#                                  raced, or more than two tests that are not in tests/timing-sensitive.txt
# The records are kept in the folder LISA_SUITE_NOTES; its file `skipped` names the checks that could not run.
set -euo pipefail
notes=${LISA_SUITE_NOTES:?a folder for the records}
marked=${LISA_TIMING_SENSITIVE:-$(dirname "$0")/timing-sensitive.txt}
mkdir -p "$notes"
# A run has three suites, each with hundreds of concurrent tests, on a machine of any speed.
tolerated=${LISA_TOLERATED_RACES:-2}
# The tests of promises about messages. A race in one of them may be a lost message.
promises='^(model|scripts|reshard|faults|scenarios)::'

# Prints the output of a failed test from a log, at most 100 lines.
output_of() {
  awk -v begin="---- $1 stdout ----" '
    $0 == begin { on = 1; next }
    on && (/^---- .* ----$/ || /^failures:$/) { exit }
    on && ++lines <= 100' "$2"
}

note() {
  { printf '%s\n' "$1"; output_of "$1" "$2"; } >"$(mktemp "$notes/race.XXXXXX")"
}

run() {
  local log alone failed name bad=0
  log=$(mktemp "$notes/log.XXXXXX") alone=$(mktemp "$notes/log.XXXXXX")
  if "$@" 2>&1 | tee "$log"; then return 0; fi
  # Tests that were lost in a crash have no line.
  if grep -Eq '\(signal: [0-9]+|could not compile' "$log"; then return 1; fi
  mapfile -t failed < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | sed 's/ - should panic$//' | sort -u)
  if [ "${#failed[@]}" -eq 0 ] || [ "${#failed[@]}" -gt 5 ]; then return 1; fi
  printf '\n== again, alone: %s\n' "${failed[*]}"
  for _ in 1 2 3; do
    cargo test --workspace --no-fail-fast -- --exact --test-threads=1 "${failed[@]}" 2>&1 | tee -a "$alone" || bad=1
  done
  for name in "${failed[@]}"; do
    # A name that matches no test has not passed.
    if ! grep -Eq "^test .* ok$" <(grep -F "test $name" "$alone"); then
      bad=1
      continue
    fi
    note "$name" "$log"
  done
  return "$bad"
}

report() {
  local race name reason bad=0 races=0
  if [ -e "$notes/skipped" ]; then sed 's/^/== SKIPPED: /' "$notes/skipped"; fi
  for race in "$notes"/race.*; do
    [ -e "$race" ] || continue
    name=$(head -n 1 "$race")
    reason=$(awk -v name="$name: " 'index($0, name) == 1 { print substr($0, length(name) + 1); exit }' "$marked")
    printf '\n== failed, and passed alone: %s\n' "$name"
    if [ -n "$reason" ]; then
      printf '   timing-sensitive: %s\n' "$reason"
    else
      printf '   a race is a defect: repair it, or give its reason in tests/timing-sensitive.txt\n'
      races=$((races + 1))
      if [[ $name =~ $promises ]]; then bad=1; fi
    fi
    tail -n +2 "$race" | sed 's/^/   | /'
  done
  if ((races > tolerated)); then bad=1; fi
  return "$bad"
}

case "${1:-}" in
  run | note | report) "$@" ;;
  *)
    sed -n '2,7s/^# //p' "$0" >&2
    exit 2
    ;;
esac
