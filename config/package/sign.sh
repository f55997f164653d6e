#!/usr/bin/env bash
# Signs the checksums of packages: `sign.sh FOLDER` writes SHA256SUMS.sig there, with the private key that DIST_SIGNING_KEY names
# (or the public one, if an SSH agent has the private key). Create a key once:
#   ssh-keygen -t ed25519 -C lisa -f lisa-release
# and commit its public part to allowed_signers beside this script, with which users verify a release:
#   printf 'lisa namespaces="lisa-release" %s\n' "$(cat lisa-release.pub)" >>config/package/allowed_signers
set -euo pipefail
signers=${DIST_SIGNERS:-$(dirname "$0")/allowed_signers}
sums=$1/SHA256SUMS
rm -f "$sums.sig"
ssh-keygen -Y sign -q -n lisa-release -f "$DIST_SIGNING_KEY" "$sums"
# As a user verifies it: a key that users do not have signs nothing.
if ! ssh-keygen -Y verify -f "$signers" -I lisa -n lisa-release -s "$sums.sig" <"$sums"; then
  rm -f "$sums.sig"
  echo "$signers does not have the key $DIST_SIGNING_KEY" >&2
  exit 1
fi
