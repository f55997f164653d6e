#!/usr/bin/env bash
# Prints the folder with the client generators, at the versions pinned in tests/clients: `bin` has those for Python, and
# `node_modules` those for TypeScript. Installs them into the cache folder from PyPI and npm.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
pins=("$here/clients/requirements.txt" "$here/clients/package.json")

dir="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/clients"
mkdir -p "$dir"
# Another process may install the same.
exec 9>"$dir.lock"
flock 9
if ! cat "${pins[@]}" | cmp -s - "$dir/.pins"; then
  if ! python3 -c "import ensurepip" 2>/dev/null || ! command -v npm >/dev/null; then
    bash "$here/apt-install.sh" python3-venv nodejs npm >&2
  fi
  rm -rf "$dir"
  python3 -m venv "$dir"
  "$dir/bin/pip" install --quiet --disable-pip-version-check --requirement "${pins[0]}" >&2
  cp "${pins[1]}" "$dir/"
  # TypeScript stays at 5: openapi-typescript crashes with 7.
  (cd "$dir" && npm install --no-audit --no-fund --loglevel=error >&2)
  cat "${pins[@]}" >"$dir/.pins"
fi
echo "$dir"
