#!/usr/bin/env bash
# Runs the fuzz targets: all of them for a minute each, or `run.sh TARGET [SECONDS]`. Their findings are in artifacts/.
#
# libFuzzer needs instrumentation that only nightly compilers offer; RUSTC_BOOTSTRAP enables it on the stable one. No
# sanitizer: Lisa has no unsafe code, and without one each second covers several times the input.
set -euo pipefail
cd "$(dirname "$0")"

VERSION=0.13.2
root="${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/cargo-fuzz"
if ! "$root/bin/cargo-fuzz" --version 2>/dev/null | grep -q " $VERSION$"; then
  cargo install cargo-fuzz --locked --version "$VERSION" --root "$root"
fi
export PATH="$root/bin:$PATH" RUSTC_BOOTSTRAP=1

cargo fuzz build --fuzz-dir . --sanitizer none
seconds="${2:-60}"
for target in ${1:-$(cargo fuzz list --fuzz-dir .)}; do
  printf '\n== %s, %s s\n' "$target" "$seconds"
  mkdir -p "corpus/$target"
  cargo fuzz run --fuzz-dir . --sanitizer none "$target" "corpus/$target" "seeds/$target" -- \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0
done
