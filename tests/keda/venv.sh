#!/usr/bin/env bash
# Prints the path of a Python that has gRPC and the tools that generate its clients.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/keda"
pins=$here/requirements.txt
if ! cmp -s "$pins" "$venv/.pins"; then
  if ! python3 -c "import ensurepip" 2>/dev/null; then bash "$here/../apt-install.sh" python3-venv >&2; fi
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$pins" >&2
  cp "$pins" "$venv/.pins"
fi
echo "$venv/bin/python"
