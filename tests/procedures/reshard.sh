#!/usr/bin/env bash
# Tries guides/shards.md while messages flow.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
sed 's/orders/events/; s/^\[topics.events\]/&\nshards = 16/' "$LISA_CONFIG" >"$work/lisa.toml"
mv "$work/lisa.toml" "$LISA_CONFIG"
topic=events
start_all
load
run guides/shards.md "Change the number of shards"
loaded
[ "$(lisa-manager topics --output json | jq '.topics[0].settings.shards')" = 32 ] || fail "the topic does not have 32 shards"
