#!/usr/bin/env bash
# Checks that a second build of the packages has the same bytes: `reproducible.sh BIN DIST`, where BIN has the programs that DIST was
# built from. The second build is in another folder, at another time, with another umask, time zone and language.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
repository=$(cd "$tests/.." && pwd)
cp -r "$1" "$work/programs"
find "$work/programs" -exec touch -d '2001-02-03 04:05' {} +
(
  cd "$work"
  umask 077
  # The release is a commit, so the second build sees nothing else.
  git clone --quiet "$repository" copy
  TZ=Pacific/Auckland LANG=C.UTF-8 LC_ALL=C.UTF-8 HOME=$work bash copy/config/package/build.sh programs second >/dev/null
)
diff "$2/SHA256SUMS" "$work/second/SHA256SUMS" || fail "another build has other bytes"
ok "two builds have the same bytes: $(wc -l <"$2/SHA256SUMS") files"
