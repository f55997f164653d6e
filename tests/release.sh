#!/usr/bin/env bash
# Checks that the version and the address of the repository are the same everywhere, and tries config/package/release.py as a
# maintainer would, in a copy of this tree: what it refuses, that a dry run changes nothing, and two releases. Needs Python 3 and Git.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 config/package/release.py check

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*" >&2
  [ ! -s "$work/log" ] || cat "$work/log" >&2
  exit 1
}
git ls-files -z --cached --others --exclude-standard | xargs -0 sh -c 'for file; do [ ! -e "$file" ] || printf "%s\0" "$file"; done' sh |
  tar --null -T - -cf "$work/tree.tar"
mkdir "$work/copy"
tar xf "$work/tree.tar" -C "$work/copy"
cd "$work/copy"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_{AUTHOR,COMMITTER}_NAME=test GIT_{AUTHOR,COMMITTER}_EMAIL=test@localhost
git init --quiet --initial-branch main
commit() { git add --all && git commit --quiet --message "$1"; }
commit "tests: start"
release() { python3 config/package/release.py "$@" >"$work/log" 2>&1; }
refused() { # what the message says, arguments…
  if release "${@:2}"; then fail "released: ${*:2}, although $1"; fi
  grep -q "$1" "$work/log" || fail "does not say: $1"
}

# The address. Everything that repeats it follows.
sed -i.old 's|^repository = .*|repository = ""|' Cargo.toml && rm Cargo.toml.old
python3 config/package/release.py set >/dev/null
git diff --quiet || commit "config: no address"
refused "\`repository\` is empty" 90.0.0
sed -i.old 's|^repository = .*|repository = "https://github.com/Owner/lisa"|' Cargo.toml && rm Cargo.toml.old
refused "changes" 90.0.0
refused "should be github.com/Owner/lisa/shared/clients/go" check
release set || fail "set"
[ "$(sed -n 's/^module //p' shared/clients/go/go.mod)" = github.com/Owner/lisa/shared/clients/go ] || fail "the module of Go"
grep -q '<groupId>io.github.owner</groupId>' shared/clients/java/pom.xml || fail "the group of Maven"
commit "config: name the repository"

refused "expected X.Y.Z" 90.0
refused "expected X.Y.Z" 90.0.0-pre
refused "must not be lower" 0.0.1
git switch --quiet --create other
refused "release from main" 90.0.0
git switch --quiet main
echo 1 >new-file
refused "changes" 90.0.0
rm new-file

# Another place for a version that nobody set.
sed -i.old 's/^    newTag: .*/    newTag: 9.9.9/' config/kubernetes/base/kustomization.yaml && rm config/kubernetes/base/*.old
commit "tests: another version"
refused "kustomization.yaml:[0-9]*: 9.9.9 should be" 90.0.0
refused "kustomization.yaml:[0-9]*: 9.9.9 should be" check
git reset --quiet --hard HEAD~

# A section of its own, because there is none right after a release.
section() { # heading, entry
  awk -v heading="$1" -v entry="$2" '/^## / && !done { print heading "\n" (entry ? "\n" entry "\n" : ""); done = 1 } 1' CHANGELOG.md >"$work/changelog"
  cp "$work/changelog" CHANGELOG.md
}
sed -i.old 's/ (unreleased)$/ (2020-01-01)/' CHANGELOG.md && rm CHANGELOG.md.old
commit "tests: no section"
refused "expected one section" 90.0.0
section "## Unreleased" ""
commit "tests: an empty section"
refused "has no entry" 90.0.0
git reset --quiet --hard HEAD~
section "## Unreleased" "- One thing."
commit "tests: a section"

before=$(git rev-parse HEAD)
old=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
release 90.0.0-rc.1 --dry-run || fail "a dry run"
[ "$(git rev-parse HEAD)" = "$before" ] && [ -z "$(git status --porcelain)" ] && [ -z "$(git tag)" ] || fail "a dry run changes something"
release 90.0.0-rc.1 || fail "a release"
[ "$(git log -1 --format=%s)" = "release: 90.0.0-rc.1" ] && [ "$(git rev-parse HEAD~)" = "$before" ] || fail "the commit"
[ -z "$(git status --porcelain)" ] || fail "a change is not committed"
for tag in v90.0.0-rc.1 shared/clients/go/v90.0.0-rc.1; do
  [ "$(git rev-parse "$tag^{commit}")" = "$(git rev-parse HEAD)" ] || fail "the tag $tag"
done
grep -qx "## 90.0.0-rc.1 ($(date -u +%F))" CHANGELOG.md || fail "the date in the changelog"
grep -qF 'lisa_90.0.0~rc.1-1_amd64.deb' shared/docs/start/install.md || fail "the name of the Debian package"
python3 config/package/release.py check
# A place that the list lacks. Measurements and the history keep the version that they are about, and some numbers are no versions.
if git grep -nF "$old" -- . ':!CHANGELOG.md' ':!tests' ':!*.rs' ':!*.lock' ':!*-lock.json' ':!shared/docs/start/comparison.md'; then
  fail "these have the old version: add them to PLACES in config/package/release.py"
fi
if git grep -n 'is not released yet' -- '*.md' ':!CONTRIBUTING.md'; then fail "these say that the version is not released"; fi

section "## 90.0.0 (unreleased)" "- Another thing."
commit "tests: the next section"
refused "must be greater than 90.0.0-rc.1" 90.0.0-rc.1
refused "must be greater than 90.0.0-rc.1" 90.0.0-alpha.2
release 90.0.0 || fail "a release after its candidate"
[ "$(grep -c '^## 90' CHANGELOG.md)" = 2 ] || fail "the sections of the changelog"
echo "ok: releases"
