#!/usr/bin/env bash
# Prints the path of a Python that has the packages of a file with pinned versions: `venv.sh NAME PINS`. Keeps it in the cache.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/$1"
pins=$2
if ! cmp -s "$pins" "$venv/.pins"; then
  if ! python3 -c "import ensurepip" 2>/dev/null; then bash "$here/apt-install.sh" python3-venv >&2; fi
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$pins" >&2
  cp "$pins" "$venv/.pins"
fi
echo "$venv/bin/python"
