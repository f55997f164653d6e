#!/usr/bin/env bash
# Prints the path of a server program, `rabbitmq`, `nats` or `prometheus`, from its Debian packages, which it unpacks into the
# cache folder. Installs nothing and starts nothing. `promtool` is beside `prometheus`.
set -euo pipefail

case "${1:-}" in
  rabbitmq)
    packages=(rabbitmq-server socat libsctp1 erlang-{asn1,base,crypto,eldap,ftp,inets,mnesia,os-mon,parsetools,public-key}
      erlang-{runtime-tools,snmp,ssl,syntax-tools,tftp,tools,xmerl})
    # Not the program in sbin, which wants a system user.
    program=usr/lib/rabbitmq/bin/rabbitmq-server
    ;;
  nats) packages=(nats-server) program=usr/sbin/nats-server ;;
  prometheus) packages=(prometheus) program=usr/bin/prometheus ;;
  *)
    echo "usage: $0 rabbitmq|nats|prometheus" >&2
    exit 2
    ;;
esac

cache="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests"
dir="$cache/$1"
if [ -e "$dir/$program" ]; then
  echo "$dir/$program"
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "no apt-get on this machine: $1 cannot be fetched" >&2
  exit 1
fi
mkdir -p "$cache"
# Another process may fetch the same.
exec 9>"$cache/$1.lock"
flock 9
if [ ! -e "$dir/$program" ]; then
  part="$dir.part"
  rm -rf "$part" "$dir"
  mkdir -p "$part/packages"
  download() { (cd "$part/packages" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}" >&2); }
  # Without lists, or with old ones, it finds nothing.
  if ! download; then
    if [ "$(id -u)" -eq 0 ]; then apt-get update -qq >&2; else sudo -n apt-get update -qq >&2; fi
    download
  fi
  for package in "$part"/packages/*.deb; do dpkg -x "$package" "$part"; done
  rm -rf "$part/packages"
  # Debian's Erlang finds itself in one place only.
  for script in "$part"/usr/lib/erlang/{bin,erts-*/bin}/erl; do
    if [ -e "$script" ]; then sed -i "s|=/usr/lib/erlang\$|='$dir/usr/lib/erlang'|" "$script"; fi
  done
  mv "$part" "$dir"
fi
echo "$dir/$program"
