#!/usr/bin/env bash
# Checks that the programs know the verbs and options of each command in the book, without running it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$docs"
number=$(find . -name '*.md' | sort | xargs awk '
  FNR == 1 { fenced = 0 }
  /^ *```/ { fenced = fenced ? 0 : 1; shell = $0 ~ /```(sh|console)$/; next }
  fenced && shell {
    sub(/^ *(\$ )?/, "")
    while (/\\$/) { sub(/\\$/, ""); if ((getline next_line) <= 0) break; $0 = $0 next_line }
    if (/^lisa-(manager|producer|consumer) /) print FILENAME "\t" $0
  }' | known)
[ "$number" -gt 50 ] || fail "only $number commands were found"
ok "the programs know the $number commands of the book"
