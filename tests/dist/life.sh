#!/usr/bin/env bash
# Goes through the whole life of an installation on an empty root: `life.sh DIST`. Installs the Debian package, configures, delivers,
# rotates secrets, reloads, upgrades and rolls back under load, restores a backup, and removes everything. Prints the time of each step.
#
# Where a page of operate/ has the commands, they are run from there: see tests/procedures/lib.sh, which also has the stand-ins for
# systemd. The next version is the same package with another number: `make upgrade` runs programs of another commit.
set -euo pipefail
dist=$(cd "${1:-target/packages}" && pwd)
deb=$(compgen -G "$dist/lisa_*_$(dpkg --print-architecture).deb")
tests=$(cd "$(dirname "$0")/.." && pwd)
for program in curl jq; do command -v "$program" >/dev/null || bash "$tests/apt-install.sh" "$program"; done
bash "$tests/install-redis.sh"
unpacked=$(mktemp -d)
dpkg -x "$deb" "$unpacked"
export LISA_TEST_BIN_DIR=$unpacked/usr/bin
. "$tests/procedures/lib.sh"
rm -rf "$unpacked" "$root/usr/local" "$LISA_CONFIG"

began=$(date +%s%N)
done_with() {
  local now
  now=$(date +%s%N)
  ok "$(printf '%5d ms: %s' $(((now - began) / 1000000)) "$*")"
  began=$(date +%s%N)
}

# dpkg runs the scripts of the package in the root, so it needs a shell there. Neither the root nor the shell is part of the package.
mkdir -p "$root/var/lib/dpkg"/{info,updates}
touch "$root/var/lib/dpkg/status"
(cd "$work" && apt-get download -qq -o APT::Sandbox::User=root busybox-static && dpkg -x busybox-static_*.deb busybox)
cp "$work/busybox/bin/busybox" "$root/bin/"
for name in sh rm; do ln -s busybox "$root/bin/$name"; done
package() {
  local wrap=()
  [ "$(id -u)" -eq 0 ] || wrap=(unshare --map-root-user)
  DEBIAN_FRONTEND=noninteractive "${wrap[@]}" dpkg --root="$root" --log=/dev/null --force-confdef --force-confold "$@" >"$work/block.log" 2>&1 ||
    fail "dpkg $*"
}
export PATH="$root/usr/bin:$PATH"
# All files but those of the stand-ins, of Redis and of dpkg.
files() { (cd "$root" && find . -type f | grep -vE '^./(bin|home|run|etc/redis|var/(log|lib/(redis|dpkg)))/' | sort || true); }
files >"$work/before"
began=$(date +%s%N)

package --install "$deb"
[ "$(command -v lisa-manager)" = "$root/usr/bin/lisa-manager" ] || fail "no program"
done_with "installed"

# Tokens for senders and operators, a user of Redis with a password file, and a webhook that checks its signatures.
secret() { head -c 24 /dev/urandom | base64 | tr -d '+/=\n'; }
signing() { printf 'whsec_%s\n' "$(head -c 24 /dev/urandom | base64)"; }
replace() { cat >"$1.new" && mv "$1.new" "$1"; }
hook=$(bash "$tests/free-port.sh")
first=$(secret)
echo "$first" >"$root/etc/lisa/redis-password"
echo "user lisa on >$first ~* &* +@all" >>"$root/etc/redis/redis.conf"
signing >"$root/etc/lisa/webhook-secret"
cat >"$work/lisa.toml" <<END
[redis]
url = "redis://lisa@127.0.0.1:$port"
password_file = "$root/etc/lisa/redis-password"
[producer]
listen = "127.0.0.1:$producer"
[manager]
listen = "127.0.0.1:$manager"
[consumer]
listen = "127.0.0.1:$consumer"
[topics.orders]
groups = ["billing", "mails"]
max_attempts = 10
[[consumer.subscriptions]]
topic = "orders"
group = "billing"
sink = { type = "stdout" }
[[consumer.subscriptions]]
topic = "orders"
group = "mails"
sink = { type = "http", url = "http://127.0.0.1:$hook/mails", allow_private = true, secret_file = "$root/etc/lisa/webhook-secret" }
END
# Writes the configuration with the token of operators and these tokens of senders.
configure() {
  local token
  {
    cat "$work/lisa.toml"
    printf '[[auth.tokens]]\nname = "operator"\nsha256 = "%s"\nscopes = ["read", "operate"]\n' "$(printf %s "$operator" | sha256sum | cut -d' ' -f1)"
    for token in "$@"; do
      printf '[[auth.tokens]]\nname = "sender-%s"\nsha256 = "%s"\nscopes = ["send"]\n' "${token:0:4}" "$(printf %s "$token" | sha256sum | cut -d' ' -f1)"
    done
  } | replace "$LISA_CONFIG"
}
operator=$(secret)
token_a=$(secret)
configure "$token_a"
lisa-manager config check >"$work/block.log" 2>&1 || fail "config check"
python3 "$tests/dist/webhook.py" "$hook" "$root/etc/lisa/webhook-secret" "$work/webhook" &
systemctl start redis-server
eventually redis-cli PING
systemctl start lisa-manager lisa-consumer lisa-producer
done_with "configured, started and ready"

# Requests without options of their own have the token of a sender, as those of lib.sh.
as() { echo "header = \"Authorization: Bearer $1\"" >"$HOME/.curlrc"; }
operate() { curl -q -sf -H "Authorization: Bearer $operator" "$@"; }
accepts() { curl -q -sf -o /dev/null -H "Authorization: Bearer $1" -d x "http://127.0.0.1:$producer/v1/topics/orders/messages"; }
refuses() { ! accepts "$1"; }
refuses wrong || fail "a send with a wrong token is not refused"
as "$token_a"
send hello 1 1s
reached() { grep -q "^$1 ok$" "$work/webhook"; }
printed() { delivered | grep -qx "$1"; }
eventually reached hello-1
eventually printed hello-1
done_with "sent, and delivered to two groups after 1 s"

send later 1 1h
lisa-manager explain orders later-1 >"$work/block.log" || fail "a waiting message is not explained"
lisa-manager cancel orders later-1 >"$work/block.log" || fail "a waiting message is not canceled"
operate "http://127.0.0.1:$manager/v1/topics/orders" | jq -e '.topic == "orders"' >/dev/null || fail "no topic over HTTP"
operate -o /dev/null "http://127.0.0.1:$manager/metrics" || fail "no metrics"
done_with "explained, canceled and counted, by the command line and over HTTP"

# While messages flow: a new secret is added to what checks it, then used, and the old one is removed.
load
second=$(secret)
redis-cli ACL SETUSER lisa ">$second" >/dev/null
sed -i "s/>$first/>$second/" "$root/etc/redis/redis.conf"
replace "$root/etc/lisa/redis-password" <<<"$second"
{ cat "$root/etc/lisa/webhook-secret" && signing; } | replace "$root/etc/lisa/webhook-secret"
has_reloaded() { operate "http://127.0.0.1:$1/metrics" | grep -q '^lisa_config_reloads_total.*"applied".* [1-9]'; }
for at in "$manager" "$consumer" "$producer"; do eventually has_reloaded "$at"; done
redis-cli ACL SETUSER lisa "<$first" >/dev/null
redis-cli CLIENT KILL USER lisa >/dev/null
tail -n 1 "$root/etc/lisa/webhook-secret" | replace "$root/etc/lisa/webhook-secret"
token_b=$(secret)
configure "$token_a" "$token_b"
run operate/deploy.md Reload
eventually accepts "$token_b"
as "$token_b"
configure "$token_b"
run operate/deploy.md Reload
eventually refuses "$token_a"
loaded
done_with "rotated the password of Redis, a signing secret and a token under load"

sed -i 's/^max_attempts.*/max_attempts = 11/' "$work/lisa.toml"
configure "$token_b"
processes=$(cat "$root"/run/lisa-*.pid)
run operate/deploy.md Reload
changed() { lisa-manager topics --output json | grep -q '"max_attempts": *11'; }
eventually changed
[ "$(cat "$root"/run/lisa-*.pid)" = "$processes" ] || fail "a reload started another process"
done_with "reloaded a changed setting"

# The package of the next version restarts the roles on a host with systemd; here, the commands of the page do.
dpkg-deb -R "$deb" "$work/next"
sed -i 's/^Version: .*/Version: 9.0.0-1/' "$work/next/DEBIAN/control"
dpkg-deb --root-owner-group -Zgzip -z1 --build "$work/next" "$work/next.deb" >/dev/null
restart() { for role in "$@"; do systemctl restart "lisa-$role"; done; }
installed() { sed -n 's/^Version: //p' "$root/var/lib/dpkg/status"; }
before=$(installed)
began=$(date +%s%N)
load
package --install "$work/next.deb"
restart manager consumer producer
[ "$(installed)" = 9.0.0-1 ] || fail "not upgraded"
grep -q max_attempts "$LISA_CONFIG" || fail "the upgrade replaced the configuration"
done_with "upgraded under load"
package --force-downgrade --install "$deb"
restart producer consumer manager
[ "$(installed)" = "$before" ] || fail "not rolled back"
done_with "rolled back under load"
loaded

send kept 50 1h
run operate/backup.md "Back up with a snapshot"
send late 5 1h
run operate/backup.md Restore 1
run operate/backup.md Restore 2
run operate/backup.md "Restore a snapshot"
run operate/backup.md Restore 3
counts .waiting 50 || fail "$(count .waiting) messages wait after the restore, not the 50 of the backup"
run operate/backup.md Restore 4
run operate/backup.md Restore 5
conserved
lisa-manager deliver-now orders kept-1 >/dev/null
eventually reached kept-1
! grep -v ' ok$' "$work/webhook" || fail "a webhook had a wrong signature"
done_with "backed up, lost everything, and restored"

systemctl stop lisa-producer lisa-consumer lisa-manager
package --remove lisa
[ -e "$LISA_CONFIG" ] || fail "a removal removes the configuration"
package --purge lisa
rm -rf "$root/var/backups/lisa"
files >"$work/after"
diff "$work/before" "$work/after" || fail "a purge leaves these files"
done_with "removed"
