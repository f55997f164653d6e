# Functions of the scripts in this folder, which try each package as a new user, in an empty root. Sourced, not run.
# shellcheck shell=bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tests=$(dirname "$here")
work=$(mktemp -d)
children=()
finish() {
  local code=$?
  # strace does not end what it traces.
  for child in "${children[@]}"; do pgrep -P "$child" | xargs -r kill 2>/dev/null || true; done
  for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
  wait 2>/dev/null || true
  if [ "$code" -ne 0 ]; then
    for log in "$work"/*.log; do
      if [ -e "$log" ]; then printf '== %s\n' "$log" && tail -n 20 "$log"; fi
    done >&2
  fi
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
ok() { echo "ok: $*"; }
skip() {
  echo "== SKIPPED: $*"
  if [ -n "${LISA_CI_NOTES:-}" ]; then echo "packages: $*" >>"$LISA_CI_NOTES/skipped"; fi
}

# Installs the Debian package of a program that is not there: `need PROGRAM [PACKAGE]`.
need() { command -v "$1" >/dev/null || bash "$tests/apt-install.sh" "${2:-$1}"; }

# Fills a folder of the cache by a command that runs in it, unless these pins filled it: `cache FOLDER PINS COMMAND…`.
cached=${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/dist
cache() {
  if cmp -s "$2" "$cached/$1/.pins"; then return; fi
  if [ "$1" = venv ] && ! python3 -c "import ensurepip" 2>/dev/null; then bash "$tests/apt-install.sh" python3-venv; fi
  rm -rf "${cached:?}/$1"
  mkdir -p "$cached/$1"
  (cd "$cached/$1" && "${@:3}")
  cp "$2" "$cached/$1/.pins"
}

# The only file that matches: `only "$dist"/*.deb`.
only() {
  if [ $# -ne 1 ] || [ ! -e "$1" ]; then fail "not exactly one file: $*"; fi
  echo "$1"
}

# Starts a command in the background that ends with the script: `background NAME COMMAND…`. Its output is in NAME.log.
background() {
  "${@:2}" >"$work/$1.log" 2>&1 &
  children+=($!)
}

# Waits up to 30 s until a command succeeds.
eventually() {
  for _ in $(seq 300); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  fail "not within 30 s: $*"
}

# Starts a private Redis that other arguments may configure, and sets `port`.
redis() {
  port=$(bash "$tests/free-port.sh")
  bash "$tests/install-redis.sh"
  local server=${LISA_REDIS_SERVER:-$(command -v redis-server || command -v valkey-server)}
  background redis "$server" --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$work" "$@"
  eventually answers "$port"
}
answers() { bash -c "exec 3<>/dev/tcp/127.0.0.1/$1"; }

# The status of a route: `route PORT PATH STATUS`.
route() { [ "$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$1$2")" = "$3" ]; }

# Checks that programs are static. With DIST_DYNAMIC=1, which tries the scripts on other builds, copies their libraries.
libraries() { # root, programs…
  local program library
  for program in "${@:2}"; do
    if ! ldd "$program" 2>/dev/null | grep -q ' => '; then continue; fi
    [ -n "${DIST_DYNAMIC:-}" ] || fail "$program is not static"
    ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
      mkdir -p "$1$(dirname "$library")"
      cp -L "$library" "$1$library"
    done
  done
}

# A shell for the scripts of packages in an empty root.
shell() { # root
  local name
  (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root busybox-static && dpkg -x busybox-static_*.deb busybox)
  cp "$work/busybox/bin/busybox" "$1/bin/"
  for name in sh rm; do ln -s busybox "$1/bin/$name"; done
}

# Runs a command in a root folder, also without being root: `"${in_root[@]}" ROOT COMMAND…`. No function, because a signal to a
# function in the background would not reach the command.
PATH=$PATH:/usr/sbin:/sbin
in_root=(chroot)
[ "$(id -u)" -eq 0 ] || in_root=(unshare --map-root-user chroot)
