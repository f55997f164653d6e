#!/usr/bin/env bash
# Runs the programs of another version and of this one side by side: `upgrade.sh [COMMIT]`, by default the latest tag before this
# commit. Builds the programs of that commit, unless LISA_TEST_OLD_BIN names a folder that has them. Then replaces each process by one of
# this version and by an old one again while messages flow, and does the same as operate/deploy.md describes it.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
if [ -z "${LISA_TEST_OLD_BIN:-}" ]; then
  commit=${1:-$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null || true)}
  if [ -z "$commit" ]; then
    echo "== SKIPPED: there is no tag yet: name a commit, as in upgrade.sh HEAD~100"
    exit 0
  fi
  commit=$(git rev-parse --short=12 "$commit^{commit}")
  target=$PWD/target/upgrade
  export LISA_TEST_OLD_BIN=$target/$commit
  if [ ! -x "$LISA_TEST_OLD_BIN/lisa-consumer" ]; then
    source=$(mktemp -d)
    trap 'rm -rf "$source"' EXIT
    git archive "$commit" | tar x -C "$source"
    (cd "$source" && CARGO_TARGET_DIR=$target $cargo build --quiet -p lisa-producer -p lisa-manager -p lisa-consumer --bins \
      --features lisa-producer/cli,lisa-consumer/cli)
    mkdir -p "$LISA_TEST_OLD_BIN"
    for program in lisa-consumer lisa-manager lisa-producer; do mv "$target/debug/$program" "$LISA_TEST_OLD_BIN/"; done
  fi
fi
for program in "$LISA_TEST_OLD_BIN/lisa-manager" "${LISA_TEST_BIN_DIR:-target/debug}/lisa-manager"; do
  echo "$program: $("$program" --version)"
done
$cargo test -p lisa-tests --test it -- scenarios::rolling:: --nocapture
bash tests/procedures/run.sh upgrade
