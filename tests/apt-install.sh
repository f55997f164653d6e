#!/usr/bin/env bash
# Installs Debian packages, with sudo unless it runs as root: `apt-install.sh PACKAGE…`.
set -euo pipefail

if ! command -v apt-get >/dev/null; then
  echo "no apt-get on this machine: install $*" >&2
  exit 1
fi
as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}
as_root apt-get update -qq >&2
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
