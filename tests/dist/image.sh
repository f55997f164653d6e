#!/usr/bin/env bash
# Tries the image: `image.sh DIST`. Reads the archive with two other tools, and runs each role as PID 1, as the user of the image,
# with a root that is read-only.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
dist=${1:-target/packages}
archive=$(only "$dist"/lisa-*-"$(uname -m)"-image.tar)
need skopeo
need umoci
need jq
need curl
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$tests/../Cargo.toml" | head -n 1)

# As Podman and containerd read it, and as old versions of Docker do.
for form in oci-archive docker-archive; do
  skopeo --tmpdir "$work" inspect --config "$form:$archive" >"$work/$form.json"
  value() { jq -r "$1" "$work/$form.json"; }
  [ "$(value .config.User)" = 65532:65532 ] || fail "$form: the user"
  [ "$(value '.config.Labels["org.opencontainers.image.version"]')" = "$version" ] || fail "$form: the version"
  [ "$(value .os)" = linux ] || fail "$form: the operating system"
  [ "$(value '.rootfs.diff_ids | length')" = 1 ] || fail "$form: the layers"
done
# Reads each blob and checks its digest.
skopeo --tmpdir "$work" copy --quiet --insecure-policy "oci-archive:$archive" "oci:$work/layout:$version" >/dev/null
ok "configuration and digests, as an OCI archive and as an archive of Docker"

rootless=()
[ "$(id -u)" -eq 0 ] || rootless=(--rootless)
umoci unpack "${rootless[@]}" --image "$work/layout:$version" "$work/bundle"
root=$work/bundle/rootfs
(cd "$root" && find . -type f ! -path './usr/share/licenses/*' | sort) >"$work/files"
diff - "$work/files" <<'LIST' || fail "other files than these"
./etc/group
./etc/passwd
./etc/ssl/certs/ca-certificates.crt
./usr/bin/lisa-consumer
./usr/bin/lisa-manager
./usr/bin/lisa-producer
LIST
[ -z "$(find "$root" -perm /6000)" ] || fail "a file has setuid or setgid"
[ -z "$(find "$root" -perm -o+w ! -path "$root/tmp")" ] || fail "a file that everybody can write"
libraries "$root" "$root"/usr/bin/*
for authority in /usr/local/share/ca-certificates/*.crt; do
  if [ ! -e "$authority" ]; then continue; fi
  ! grep -qxF "$(sed -n '/BEGIN CERTIFICATE/{n;n;p;q}' "$authority")" "$root/etc/ssl/certs/ca-certificates.crt" ||
    fail "the image trusts $authority, an authority of this machine"
done
ok "nothing else is in the image"

# The environment of the image and nothing else.
environment=()
while IFS= read -r line; do environment+=("$line"); done < <(jq -r '.config.Env[]' "$work/oci-archive.json")
container() { # NAME COMMAND…
  local user=(--userspec=65532:65532) wrap=()
  # Without root, the user of this shell is root of the namespace.
  [ "$(id -u)" -eq 0 ] || user=() wrap=(--map-root-user)
  background "$1" unshare "${wrap[@]}" --mount --pid --fork --kill-child bash -c '
    mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && mount -t tmpfs tmpfs "$0/tmp"
    exec env -i "${@:2:$1}" /usr/sbin/chroot "${@:2 + $1}"' \
    "$root" $((${#environment[@]} + ${#settings[@]})) "${environment[@]}" "${settings[@]}" "${user[@]}" "$root" "${@:2}"
}
redis
for role in manager consumer producer; do
  at=$(bash "$tests/free-port.sh")
  settings=("LISA_REDIS_URL=redis://127.0.0.1:$port" "LISA_${role^^}__LISTEN=127.0.0.1:$at")
  if [ "$role" = consumer ]; then settings+=('LISA_CONSUMER__SUBSCRIPTIONS=[{"topic":"orders","group":"default","sink":{"type":"stdout"}}]'); fi
  if [ "$role" = manager ]; then settings+=("LISA_TOPICS__ORDERS__LEASE=45s"); fi
  container "$role" "lisa-$role" run
  outer=$!
  eventually route "$at" /readyz 200
  eventually route "$at" /healthz 200
  inner=$(pgrep -P "$outer")
  status() { sed -n "s/^$1:\t*//p" "/proc/$inner/status"; }
  [ "$(id -u)" -ne 0 ] || [[ $(status Uid) = 65532* ]] || fail "the user of $role is $(status Uid)"
  [[ $(status NSpid) = *$'\t'1 ]] || fail "$role is not PID 1"
  kill -TERM "$inner"
  wait "$outer" || fail "$role: exit code $? after SIGTERM"
  ok "$role: ready as user 65532 and PID 1, with a read-only root; exits with 0 after SIGTERM"
done
