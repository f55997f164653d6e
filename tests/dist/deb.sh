#!/usr/bin/env bash
# Tries the Debian package as a new user: `deb.sh DIST`. Installs it into an empty root that has only a shell, starts each role by
# the ExecStart of its unit, upgrades it, removes and purges it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
dist=${1:-target/packages}
deb=$(only "$dist"/lisa_*_"$(dpkg --print-architecture)".deb)
need lintian
need curl

# Of the address of the maintainer, which is not decided yet, lintian knows that it does not exist.
lintian --allow-root --fail-on error --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog "$deb"
ok "lintian"

root=$work/root
mkdir -p "$root"/{var/lib/dpkg/{info,updates},etc,bin}
touch "$root/var/lib/dpkg/status"
shell "$root"
files() { (cd "$root" && find . -path ./var/lib/dpkg -prune -o -print | sort); }
files >"$work/before"

# The root has neither systemd nor any other package.
conf=(--force-confdef --force-confold)
package() {
  local wrap=()
  [ "$(id -u)" -eq 0 ] || wrap=(unshare --map-root-user)
  DEBIAN_FRONTEND=noninteractive "${wrap[@]}" dpkg --root="$root" --log=/dev/null "${conf[@]}" "$@" >"$work/dpkg.log" 2>&1 ||
    fail "dpkg $*"
}
package --install "$deb"
[ -x "$root/usr/bin/lisa-manager" ] || fail "no program"
if find "$root/etc/systemd" 2>/dev/null | grep -q lisa; then fail "a unit is enabled"; fi
ok "installed; no unit is enabled"

redis
export LISA_REDIS_URL=redis://127.0.0.1:$port
libraries "$work/libraries" "$root"/usr/bin/lisa-*
[ ! -d "$work/libraries" ] || cp -r "$work/libraries/." "$root/"
"${in_root[@]}" "$root" /usr/bin/lisa-manager config check --config /etc/lisa/lisa.toml >"$work/check.log" 2>&1 || fail "lisa.toml"
for role in manager consumer producer; do
  unit=$root/usr/lib/systemd/system/lisa-$role.service
  read -r -a command < <(sed -n 's/^ExecStart=//p' "$unit")
  at=$(bash "$tests/free-port.sh")
  export "LISA_${role^^}__LISTEN=127.0.0.1:$at"
  background "$role" "${in_root[@]}" "$root" "${command[@]}"
  eventually route "$at" /readyz 200
done
ok "each role is ready, started by the ExecStart of its unit"
for child in "${children[@]:1}"; do kill "$child"; done
for child in "${children[@]:1}"; do wait "$child" || fail "exit code $? after SIGTERM"; done
ok "each role exits with 0 after SIGTERM"
[ ! -d "$work/libraries" ] || (cd "$work/libraries" && find . -type f -exec rm "$root/{}" \; && cd "$root" && find . -type d -empty -path './lib*' -delete)

# Another version, and one with another default configuration.
repack() { # version, a line of the default configuration
  rm -rf "$work/next"
  dpkg-deb -R "$deb" "$work/next"
  sed -i "s/^Version: .*/Version: $1/" "$work/next/DEBIAN/control"
  [ $# -lt 2 ] || echo "$2" >>"$work/next/etc/lisa/lisa.toml"
  dpkg-deb --root-owner-group -Zgzip -z1 --build "$work/next" "$work/next-$1.deb" >/dev/null
}
repack 9.0.0-1 "# 9.0.0-1"
package --install "$work/next-9.0.0-1.deb"
grep -q '# 9.0.0-1' "$root/etc/lisa/lisa.toml" || fail "an unchanged configuration is not replaced"
echo '# mine' >>"$root/etc/lisa/lisa.toml"
repack 9.0.1-1 "# 9.0.1-1"
package --install "$work/next-9.0.1-1.deb"
grep -q '# mine' "$root/etc/lisa/lisa.toml" || fail "a changed configuration is lost"
ok "an upgrade keeps a configuration that was changed"
# The default does not change from release to release, so dpkg asks nothing. systemctl is recorded, because no systemd runs here.
repack 9.0.2-1 "# 9.0.1-1"
mkdir -p "$root/run/systemd/system"
printf '#!/bin/sh\necho "$*" >>/calls\n' >"$root/bin/systemctl"
chmod +x "$root/bin/systemctl"
ln -s busybox "$root/bin/timeout"
conf=()
package --install "$work/next-9.0.2-1.deb" </dev/null
grep -q '# mine' "$root/etc/lisa/lisa.toml" || fail "a changed configuration is lost"
diff - "$root/calls" <<'CALLS' || fail "an upgrade restarts in another way"
daemon-reload
daemon-reload
try-restart lisa-manager.service
try-restart lisa-consumer.service
try-restart lisa-producer.service
CALLS
rm -r "$root/run" "$root/calls" "$root"/bin/{systemctl,timeout}
ok "an upgrade does not ask, and restarts managers first and producers last"

mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s /usr/lib/systemd/system/lisa-manager.service "$root/etc/systemd/system/multi-user.target.wants/"
echo secret >"$root/etc/lisa/redis-password"
package --remove lisa
grep -q '# mine' "$root/etc/lisa/lisa.toml" || fail "a removal removes the configuration"
package --purge lisa
rm -r "$root/etc/lisa" 2>/dev/null && fail "a purge leaves /etc/lisa"
find "$root/etc/systemd" -name 'lisa*' | grep . && fail "a purge leaves a link of an enabled unit"
rm -rf "$root/etc/systemd"
files >"$work/after"
diff "$work/before" "$work/after" || fail "a purge leaves these files"
ok "a removal keeps the configuration, and a purge leaves nothing"
