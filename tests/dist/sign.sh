#!/usr/bin/env bash
# Signs checksums with a new key, and verifies them as a user does.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need ssh-keygen openssh-client
config=$tests/../config/package

for name in release other; do ssh-keygen -q -t ed25519 -N '' -C lisa -f "$work/$name"; done
printf 'lisa namespaces="lisa-release" %s\n' "$(cat "$work/release.pub")" >"$work/allowed_signers"
mkdir "$work/dist"
echo one >"$work/dist/lisa-one.tar"
(cd "$work/dist" && sha256sum lisa-one.tar >SHA256SUMS)
verify() { (cd "$work/dist" && ssh-keygen -Y verify -f "$work/allowed_signers" -I lisa -n lisa-release -s SHA256SUMS.sig <SHA256SUMS) >"$work/verify.log" 2>&1; }
sign() { DIST_SIGNERS=$work/allowed_signers DIST_SIGNING_KEY=$work/$1 bash "$config/sign.sh" "$work/dist" >"$work/sign.log" 2>&1; }

sign release || fail "signing"
verify || fail "the signature"
echo >>"$work/dist/SHA256SUMS"
if verify; then fail "changed checksums have a valid signature"; fi
ok "a signature of the checksums"
if sign other; then fail "a key that users do not have signs"; fi
[ ! -e "$work/dist/SHA256SUMS.sig" ] || fail "a signature that users cannot verify is left"
grep -q "does not have the key" "$work/sign.log" || fail "no reason"
ok "another key is refused"
