#!/usr/bin/env bash
# Checks that a new user sees a delivery within a minute: `minute.sh DIST`. Unpacks the tarball into a root with nothing but a Redis
# server and a shell, and runs `lisa-manager dev` there.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
archive=$(only "${1:-target/packages}"/lisa-*-"$(uname -m)"-linux.tar.gz)
need curl
bash "$tests/install-redis.sh"
server=${LISA_REDIS_SERVER:-$(command -v redis-server || command -v valkey-server)}

root=$work/root
mkdir -p "$root"/{bin,dev,tmp}
cp -L "$server" "$root/bin/redis-server"
DIST_DYNAMIC=1 libraries "$root" "$root/bin/redis-server"
shell "$root"
touch "$root/dev/null"
at=$(bash "$tests/free-port.sh")
began=$(date +%s%N)
since() { echo $((($(date +%s%N) - began) / 1000000)); }

tar xzf "$archive" -C "$root" --strip-components=1
libraries "$root" "$root"/bin/lisa-*
background dev "${in_root[@]}" "$root" /bin/lisa-manager dev --demo --listen "127.0.0.1:$at" --dir /tmp/lisa
eventually grep -q '"payload"' "$work/dev.log"
ok "the message of the demo is delivered $(since) ms after the tarball was there"
curl -sf -d '{"order": 7}' -H 'Content-Type: application/json' -H 'Lisa-Delay: 1s' -H 'Lisa-Id: order-7' \
  "http://127.0.0.1:$at/v1/topics/orders/messages" >/dev/null
eventually grep -q order-7 "$work/dev.log"
took=$(since)
[ "$took" -le 60000 ] || fail "a delivery after $took ms"
ok "a message sent by curl is delivered $took ms after the tarball was there"
