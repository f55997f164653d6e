#!/usr/bin/env bash
# Tries the commands of operate/repair.md on a damaged topic: the first two find the damage, and the third repairs it. The second would
# ask, so it refuses without a terminal.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
page=operate/repair.md

start_all
send kept 20 1h
redis-cli HDEL 'lisa:v1:{orders:0}:payload' kept-3 >/dev/null
redis-cli ZREM 'lisa:v1:{orders:0}:waiting' kept-4 >/dev/null
codes $page "Doctor: examine and repair" 1 1 2 0
lisa-manager doctor >/dev/null || fail "a fault is left"
counts .waiting 18 || counts .waiting 19 || fail "$(count .waiting) messages wait"
conserved
