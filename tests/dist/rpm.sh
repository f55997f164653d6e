#!/usr/bin/env bash
# Tries the RPM package as a new user: `rpm.sh DIST`. Installs it into an empty root that has only a shell, upgrades it, and removes it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
dist=${1:-target/packages}
rpm=$(only "$dist"/lisa-*."$(uname -m)".rpm)
need rpmbuild rpm

root=$work/root
mkdir -p "$root"/{bin,etc,usr}
shell "$root"
in_rpm() {
  local wrap=()
  [ "$(id -u)" -eq 0 ] || wrap=(unshare --map-root-user)
  "${wrap[@]}" rpm --root "$root" --define '_dbpath /var/lib/rpm' "$@" >"$work/rpm.log" 2>&1 || fail "rpm $*"
}
in_rpm --initdb
# Other folders belong to the distribution's package `filesystem`.
files() { (cd "$root" && find . -path ./var -prune -o ! -type d -print -o -name '*lisa*' -print | sort); }
files >"$work/before"
# The root has no other package, such as a shell.
in_rpm --install --nodeps --noverify "$rpm"
in_rpm --verify --nodeps lisa
[ "$(find "$root/etc" -name 'lisa*')" = "$root/etc/lisa
$root/etc/lisa/lisa.toml" ] || fail "a unit is enabled"
libraries "$work/libraries" "$root"/usr/bin/lisa-*
ok "installed; no unit is enabled"

echo '# mine' >>"$root/etc/lisa/lisa.toml"
in_rpm --upgrade --nodeps --force "$rpm"
grep -q '# mine' "$root/etc/lisa/lisa.toml" || fail "a changed configuration is lost"
ok "an upgrade keeps a configuration that was changed"
in_rpm --erase lisa
grep -q '# mine' "$root/etc/lisa/lisa.toml.rpmsave" || fail "a removal loses a changed configuration"
rm -r "$root/etc/lisa"
files >"$work/after"
diff "$work/before" "$work/after" || fail "a removal leaves these files"
ok "a removal leaves only the configuration that was changed"
