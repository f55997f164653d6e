#!/usr/bin/env bash
# Installs a Redis server with the system's package manager, unless one is there. Starts nothing.
set -euo pipefail

if [ -n "${LISA_REDIS_SERVER:-}" ] || command -v redis-server valkey-server >/dev/null; then
  exit 0
fi
as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}
echo "no redis-server found: installing it" >&2
if command -v apt-get >/dev/null; then
  as_root apt-get update -qq
  # The package would start its own server on port 6379; ours are private.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee /usr/sbin/policy-rc.d >/dev/null
    as_root chmod +x /usr/sbin/policy-rc.d
    trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null
elif command -v dnf >/dev/null; then
  as_root dnf install -y -q redis || as_root dnf install -y -q valkey
elif command -v apk >/dev/null; then
  as_root apk add --quiet redis
elif command -v pacman >/dev/null; then
  as_root pacman -S --noconfirm --quiet valkey
elif command -v brew >/dev/null; then
  brew install --quiet redis
else
  echo "no package manager that is known here: install redis-server >= 7.0 or set LISA_REDIS_SERVER" >&2
  exit 1
fi
