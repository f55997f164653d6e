#!/usr/bin/env bash
# Packs the libraries for their registries, and checks them as far as that works without publishing: `publish.sh OUT [--no-verify]`.
# Publishes nothing, and prints the commands that do.
#   crates    all crates that are not private, each built from its package; with --no-verify, only packed
#   python    a source distribution and a wheel, for PyPI
#   npm       a package, whose types TypeScript finds in both ways in which programs resolve modules
#   maven     a bundle for Maven Central: classes, sources, documentation. DIST_GPG_KEY signs it, which Maven Central requires
# The module of Go is not packed: its tag is its release.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: $0 OUT [--no-verify]" >&2
  exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
verify=("${@:2}")
cd "$(dirname "$0")/../.."
root=$PWD
fact() { python3 "$root/config/package/release.py" show "$1"; }
version=$(fact version) repository=$(fact repository)
# The name of a pre-release on PyPI: 0.2.0rc1.
pypi=$(sed -e 's/-alpha\./a/' -e 's/-beta\./b/' -e 's/-rc\./rc/' <<<"$version")
tools=$(bash tests/fetch-clients.sh)
PATH=$tools/bin:$tools/node_modules/.bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
ok() { echo "ok: $*"; }
rm -rf "$out"/{crates,python,npm,maven}
mkdir -p "$out"/{crates,python,npm,maven}

# The tracked files of a client and what its package needs of the repository.
stage() { # folder below shared/clients
  mkdir "$work/$1"
  git archive --format=tar HEAD "shared/clients/$1" | tar xf - -C "$work/$1" --strip-components=3
  cp LICENSE "$work/$1/"
  python3 config/package/links.py "shared/clients/$1/README.md" >"$work/$1/README.md"
}

# With the checks of cargo itself, which include that each crate builds without the rest of the repository.
${CARGO:-cargo} publish --workspace --dry-run --locked --target-dir "$root/target" "${verify[@]}"
# A dry run keeps no packages.
${CARGO:-cargo} package --workspace --exclude lisa-tests --no-verify --locked --quiet --target-dir "$root/target"
for crate in "$root"/target/package/lisa-*-"$version".crate; do
  tar tzf "$crate" | sed 's|^[^/]*/||' >"$work/files"
  for file in LICENSE README.md Cargo.toml src/lib.rs; do grep -qx "$file" "$work/files" || fail "$crate has no $file"; done
  cp "$crate" "$out/crates/"
done
ok "crates: $(basename -a "$out"/crates/* | paste -sd' ')"

stage python
if [ -n "$repository" ]; then
  printf '\n[project.urls]\nRepository = "%s"\nChangelog = "%s"\n' "$repository" "$repository/blob/v$version/CHANGELOG.md" >>"$work/python/pyproject.toml"
fi
python -m build --no-isolation --outdir "$out/python" "$work/python" >"$work/log" 2>&1 || { cat "$work/log" >&2 && fail "python -m build"; }
twine check --strict "$out"/python/*
wheel=$out/python/lisa_relay-$pypi-py3-none-any.whl
python -m zipfile --list "$wheel" >"$work/files"
for file in lisa_relay/__init__.py lisa_relay/py.typed dist-info/licenses/LICENSE; do grep -q "$file" "$work/files" || fail "the wheel has no $file"; done
tar tzf "$out/python/lisa_relay-$pypi.tar.gz" >"$work/files"
for file in LICENSE README.md tests/test_client.py; do grep -q "/$file$" "$work/files" || fail "the source distribution has no $file"; done
pip install --quiet --disable-pip-version-check --no-deps --target "$work/site" "$wheel"
PYTHONPATH=$work/site python -c 'import lisa_relay; lisa_relay.Lisa("http://127.0.0.1:7812").close()'
ok "python: $(basename -a "$out"/python/* | paste -sd' ')"

stage typescript
tsc --project "$work/typescript"
if [ -n "$repository" ]; then
  (cd "$work/typescript" && npm pkg set "homepage=$repository" "bugs.url=$repository/issues" repository.type=git \
    "repository.url=git+$repository.git" repository.directory=shared/clients/typescript)
fi
(cd "$work/typescript" && npm pack --silent --ignore-scripts --pack-destination "$out/npm" >/dev/null)
mkdir -p "$work/app/node_modules/lisa-relay"
tar xzf "$out/npm/lisa-relay-$version.tgz" -C "$work/app/node_modules/lisa-relay" --strip-components 1
(
  cd "$work/app"
  for file in LICENSE README.md dist/index.js dist/index.d.ts; do [ -e "node_modules/lisa-relay/$file" ] || fail "the package has no $file"; done
  [ ! -e node_modules/lisa-relay/src ] || fail "the package has more than it needs"
  echo '{"type": "module"}' >package.json
  # The first program of the README.
  awk '/^```/ { if (inside) exit; inside = /^```ts$/; next } inside' node_modules/lisa-relay/README.md >main.ts
  [ -s main.ts ] || fail "the README has no program"
  for resolution in nodenext bundler; do
    module=${resolution/bundler/esnext}
    printf '{"compilerOptions": {"noEmit": true, "strict": true, "target": "es2022", "lib": ["es2022", "dom"], "types": [],
      "module": "%s", "moduleResolution": "%s"}, "files": ["main.ts"]}\n' "$module" "$resolution" >tsconfig.json
    tsc --project .
  done
  node --input-type=module -e 'import { Lisa } from "lisa-relay"; new Lisa("http://127.0.0.1:7812")'
)
ok "npm: $(basename -a "$out"/npm/*)"

if command -v javac >/dev/null || bash tests/apt-install.sh default-jdk-headless; then
  stage java
  name=lisa-relay-$version
  bundle=$work/bundle/$(fact group | tr . /)/lisa-relay/$version
  mkdir -p "$bundle"
  bash "$work/java/build.sh" "$work/jar" "$work/jar"
  cp "$work/jar/lisa-relay.jar" "$bundle/$name.jar"
  javadoc --release 17 -encoding UTF-8 -quiet -notimestamp -d "$work/javadoc" -sourcepath "$work/java/src/main/java" \
    "$work/java/src/main/java/module-info.java" "$work"/java/src/main/java/lisa/relay/*.java
  jar --create --file "$bundle/$name-javadoc.jar" -C "$work/javadoc" .
  jar --create --file "$bundle/$name-sources.jar" -C "$work/java/src/main/java" .
  # Maven Central refuses a pom without these.
  address="  <url>$repository</url>\n  <scm>\n    <url>$repository</url>\n    <connection>scm:git:$repository.git</connection>\n  </scm>\n"
  awk -v address="${repository:+$address}" '{ print } /^  <\/developers>$/ { printf "%s", address }' "$work/java/pom.xml" >"$bundle/$name.pom"
  for file in "$bundle"/*; do
    if [ -n "${DIST_GPG_KEY:-}" ]; then gpg --batch --yes --local-user "$DIST_GPG_KEY" --armor --detach-sign "$file"; fi
    for sum in md5 sha1; do "${sum}sum" <"$file" | cut -d' ' -f1 | tr -d '\n' >"$file.$sum"; done
  done
  (cd "$work/bundle" && python3 -m zipfile --create "$out/maven/$name-bundle.zip" ./*)
  ok "maven: $name-bundle.zip${DIST_GPG_KEY:+, signed}"
else
  echo "== SKIPPED: the bundle for Maven Central, because no JDK can be installed"
fi

if [ -z "$repository" ]; then
  echo "Not for publishing: \`repository\` in Cargo.toml is empty, so the packages have no links to it."
  exit
fi
cat <<END
Not checked, because only the registries can: that the names are free or yours, and the categories of crates.io. To publish:
  cargo publish --workspace --locked
  $tools/bin/twine upload $out/python/*
  npm publish --access public $out/npm/*.tgz
  upload $out/maven/*.zip at https://central.sonatype.com, signed with DIST_GPG_KEY
  git push origin shared/clients/go/v$version, the release of the module $(fact go)
END
