#!/usr/bin/env bash
# Checks each package alone: without features, and with each of its features alone. Cargo unites the features of all packages of
# a build, so a package that lacks a feature or a dependency compiles in the workspace and fails for its users.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

# Prints the name of a package and those of its features. Argument: its manifest.
features() {
  awk '
    /^\[/ { section = $0 }
    section == "[package]" && /^name = / { gsub(/"/, "", $3); print $3 }
    section == "[features]" && /^[a-z-]+ = / { print $1 }
  ' "$1"
}

failed=()
# Arguments: a package, a feature or nothing, and what to check.
check() {
  local began=$SECONDS result=ok
  $cargo check --quiet -p "$1" --no-default-features --features "$2" "$3" || result=FAILED
  printf '%-14s %-14s %-7s %-6s %s s\n' "$1" "${2:-(none)}" "$3" "$result" $((SECONDS - began))
  if [[ $result != ok ]]; then failed+=("$1 ${2:-(none)} $3"); fi
}

for manifest in shared/*/Cargo.toml producer/Cargo.toml consumer/Cargo.toml manager/Cargo.toml; do
  mapfile -t names < <(features "$manifest")
  for feature in "" "${names[@]:1}"; do
    # Tests also use features that the dev-dependencies enable, so they are checked separately.
    for what in --lib --tests; do
      check "${names[0]}" "$feature" "$what"
    done
  done
done

if ((${#failed[@]} > 0)); then
  printf 'does not compile alone: %s\n' "${failed[@]}" >&2
  exit 1
fi
