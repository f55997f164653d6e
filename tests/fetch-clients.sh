#!/usr/bin/env bash
# Prints the folder with clients for tests, at the versions pinned in tests/clients: `bin` has those for Python, and
# `node_modules` those for TypeScript. Without an argument, these are the client generators; with `sqs`, the SQS clients and
# moto. Installs them into the cache folder from PyPI and npm.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
set_of=${1:-generators}
case $set_of in
  generators) folder=$here/clients name=clients ;;
  sqs) folder=$here/clients/sqs name=clients-sqs ;;
  *) echo "$0: unknown set of clients: $set_of" >&2; exit 2 ;;
esac
pins=("$folder/requirements.txt" "$folder/package.json" "$folder/package-lock.json")

dir="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/$name"
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
  cp "${pins[@]:1}" "$dir/"
  # TypeScript stays at 5: openapi-typescript crashes with 7.
  (cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
  cat "${pins[@]}" >"$dir/.pins"
fi
echo "$dir"
