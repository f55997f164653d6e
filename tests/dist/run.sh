#!/usr/bin/env bash
# Runs all scripts of this folder: `run.sh BIN DIST`, where BIN has the programs that the packages in DIST were built from.
set -euo pipefail
cd "$(dirname "$0")"
bin=$(cd "$OLDPWD" && cd "$1" && pwd)
dist=$(cd "$OLDPWD" && cd "$2" && pwd)
failed=() passed=0
try() {
  printf '\n== %s\n' "$1"
  if bash "$@"; then passed=$((passed + 1)); else failed+=("$1"); fi
}
try tarball.sh "$dist"
try minute.sh "$dist"
try deb.sh "$dist"
if compgen -G "$dist/*.rpm" >/dev/null; then try rpm.sh "$dist"; fi
try image.sh "$dist"
try life.sh "$dist"
try units.sh "$bin"
try kubernetes.sh "$bin"
try compose.sh "$bin"
try sign.sh
try reproducible.sh "$bin" "$dist"
if [ ${#failed[@]} -gt 0 ]; then echo "FAILED: ${failed[*]}" >&2; fi
printf '\n%s passed, %s failed\n' "$passed" "${#failed[@]}"
[ ${#failed[@]} -eq 0 ]
