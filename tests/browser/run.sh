#!/usr/bin/env bash
# Opens the dashboard of `lisa-manager dev` in Chromium: accessibility of each page in both themes and two widths (axe-core), no
# message in the console, no violation of the content security policy, what charts show at the pointer and for the keyboard, and
# what pages do while they refresh.
# Installs Chromium and its driver with the system's package manager if there is none, and axe-core from npm into the cache. Where
# that fails, the checks are skipped and reported, but with CI set they fail.
# With --quick it opens five pages in one theme, and takes less than half a minute.
set -euo pipefail
cd "$(dirname "$0")/../.."
AXE=4.11.1

bin="${LISA_TEST_BIN_DIR:-$PWD/target/debug}"
here=$PWD/tests/browser
cache="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/browser"
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
  if ! bash tests/apt-install.sh chromium chromium-driver; then
    echo "SKIPPED: the dashboard was not opened in a browser, because Chromium cannot be installed" >&2
    [[ -z ${CI:-} ]]
    exit
  fi
fi
mkdir -p "$cache"
if ! cmp -s "$here/requirements.txt" "$cache/.pins" || [[ ! -e $cache/axe-$AXE.js ]]; then
  if ! python3 -c "import ensurepip" 2>/dev/null || ! command -v npm >/dev/null; then
    bash tests/apt-install.sh python3-venv nodejs npm
  fi
  python3 -m venv "$cache/venv"
  "$cache/venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
  (cd "$cache" && npm pack --silent "axe-core@$AXE" >/dev/null && tar -xzf "axe-core-$AXE.tgz" package/axe.min.js && mv package/axe.min.js "axe-$AXE.js")
  cp "$here/requirements.txt" "$cache/.pins"
fi

dir=$(mktemp -d)
pids=()
finish() {
  kill "${pids[@]}" 2>/dev/null || true
  wait "${pids[@]}" 2>/dev/null || true
  rm -rf "$dir"
}
trap finish EXIT

# Starts a relay in a directory, with these arguments, and sets `port` to its port.
relay() {
  port=$(bash tests/free-port.sh)
  mkdir "$dir/$1"
  (cd "$dir/$1" && exec "$bin/lisa-manager" dev --listen "127.0.0.1:$port" "${@:2}") >"$dir/$1.log" 2>&1 &
  pids+=($!)
}
relay schedules --config "$here/schedules.toml"
export SCHEDULES_PORT=$port
relay tokens --config "$here/tokens.toml"
export TOKENS_PORT=$port
relay dev
REDIS_SOCKET=$dir/dev/.lisa/redis.sock AXE_FILE=$cache/axe-$AXE.js "$cache/venv/bin/python" "$here/pages.py" "http://127.0.0.1:$port" "$@"
