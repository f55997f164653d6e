#!/usr/bin/env bash
# Tries the commands of operate/capacity.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
start_all
run operate/capacity.md "Estimate a load"
