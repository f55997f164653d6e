#!/usr/bin/env bash
# Tries the procedures of the book: `run.sh [NAME…]` runs the scripts of this folder with these names, by default all. Then also checks
# that each block of shell commands in operate/ was run, or skipped with a reason. The programs are in LISA_TEST_BIN_DIR.
#
# To add a procedure, write its commands into the page, and `run PAGE HEADING` into a script of this folder.
set -euo pipefail
cd "$(dirname "$0")"
LISA_TEST_COVERED=$(mktemp)
export LISA_TEST_COVERED
trap 'rm -f "$LISA_TEST_COVERED"' EXIT
for program in curl jq python3; do
  command -v "$program" >/dev/null || bash ../apt-install.sh "$program"
done
bash ../install-redis.sh
names=("$@")
if [ $# -eq 0 ]; then
  for script in *.sh; do
    case $script in lib.sh | run.sh) ;; *) names+=("${script%.sh}") ;; esac
  done
fi
failed=() passed=0
for name in "${names[@]}"; do
  printf '\n== %s\n' "$name"
  if bash "$name.sh"; then passed=$((passed + 1)); else failed+=("$name"); fi
done

# Prints PAGE#HEADING#N of each block of shell commands in operate/.
blocks() {
  cd ../../shared/docs
  awk '
    FNR == 1 { fenced = 0; title = "" }
    /^ *```/ {
      if (fenced) { fenced = 0; next }
      fenced = 1
      if ($0 ~ /```sh$/) print FILENAME "#" title "#" ++n[FILENAME title]
      next
    }
    !fenced && /^#+ / { title = $0; sub(/^#+ /, "", title) }' operate/*.md
}
if [ $# -eq 0 ]; then
  missing=$(comm -23 <(blocks | sort) <(sort -u "$LISA_TEST_COVERED"))
  if [ -n "$missing" ]; then
    printf 'no script runs or skips these blocks:\n%s\n' "$missing" >&2
    failed+=(coverage)
  fi
fi
printf '\n%s passed, %s failed%s\n' "$passed" "${#failed[@]}" "${failed[*]:+: ${failed[*]}}"
[ ${#failed[@]} -eq 0 ]
