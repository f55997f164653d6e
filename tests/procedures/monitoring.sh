#!/usr/bin/env bash
# Tries the commands of operate/monitoring.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
page=operate/monitoring.md

# Lists of examples, for messages and groups that do not exist here. tests/it/scenarios/verbs.rs and others run these verbs.
parse $page "Operator commands"
parse $page "Without access to Redis"
run $page "Completions and man pages"
bash -n ~/.local/share/bash-completion/completions/lisa-manager
[ -s ~/.local/share/man/man1/lisa-manager.1 ] || fail "no man page"
