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
for manifest in shared/*/Cargo.toml producer/Cargo.toml consumer/Cargo.toml manager/Cargo.toml; do
  mapfile -t names < <(features "$manifest")
  package=${names[0]}
  for feature in "" "${names[@]:1}"; do
    began=$SECONDS result=ok
    $cargo check --quiet -p "$package" --no-default-features --features "$feature" || result=FAILED
    printf '%-14s %-14s %-6s %s s\n' "$package" "${feature:-(none)}" "$result" $((SECONDS - began))
    if [[ $result != ok ]]; then failed+=("$package ${feature:-(none)}"); fi
  done
done

if ((${#failed[@]} > 0)); then
  printf 'does not compile alone: %s\n' "${failed[@]}" >&2
  exit 1
fi
