#!/usr/bin/env bash
# Tries guides/groups.md: the commands of an operator for a group without consumers.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
sed -i 's/^groups = .*/groups = ["billing", "search"]/' "$LISA_CONFIG"
start_all
send done 20 0s
eventually counts '[.groups[] | select(.group == "search") | .ready] | add' 20
page=guides/groups.md
run $page "Example"
[ "$(lisa-manager groups list orders --output json | jq '[.. | .group? // empty] | index("search")')" = null ] || fail "the group is still there"
conserved
