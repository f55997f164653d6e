#!/usr/bin/env bash
# Installs one peer of the benchmark, at the pinned versions, into a folder outside this project:
# install.sh NAME FOLDER. Does nothing if it is installed. Fails with the reason if it is not available here.
set -euo pipefail

name=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder/$name"

need() {
  command -v "$1" >/dev/null || {
    echo "needs $1" >&2
    exit 1
  }
}

# Succeeds if the pinned versions have not changed since the last installation.
current() {
  cat "$@" | cmp -s - "$folder/$name/.pins"
}
remember() {
  cat "$@" >"$folder/$name/.pins"
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}
# Installs a Debian package without its recommendations, and stops its own service, if it has one: only the programs are wanted.
debian() {
  need apt-get
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null
  as_root systemctl disable --now "$1" >/dev/null 2>&1 || true
}

case $name in
bullmq | pgboss)
  need node
  need npm
  pins=("$here/$name/package.json" "$here/$name/package-lock.json")
  if ! current "${pins[@]}"; then
    cp "${pins[@]}" "$folder/$name/"
    # Not `npm ci`: it refuses a lock file without the binaries for other systems.
    (cd "$folder/$name" && npm install --no-save --ignore-scripts --no-audit --no-fund --loglevel=error)
    remember "${pins[@]}"
  fi
  # Node looks for a module beside its importer.
  cp "$here/protocol.mjs" "$here/$name/peer.mjs" "$folder/$name/"
  if [ "$name" = pgboss ] && ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; then debian postgresql; fi
  ;;
typescript)
  need node
  need npm
  client=$here/../../../shared/clients/typescript
  pins=("$client/package.json" "$client"/src/*)
  if ! current "${pins[@]}"; then
    package=$folder/$name/node_modules/lisa-relay
    rm -rf "$package"
    mkdir -p "$package"
    cp -r "$client"/{package.json,tsconfig.json,src} "$package"
    (cd "$package" && npm install --ignore-scripts --no-audit --no-fund --loglevel=error && npm run --silent build)
    remember "${pins[@]}"
  fi
  cp "$here/protocol.mjs" "$here/$name/peer.mjs" "$folder/$name/"
  ;;
python)
  need python3
  client=$here/../../../shared/clients/python
  pins=("$here/$name/requirements.txt" "$client"/src/lisa_relay/*.py)
  if ! current "${pins[@]}"; then
    rm -rf "$folder/$name/venv"
    python3 -m venv "$folder/$name/venv"
    "$folder/$name/venv/bin/pip" install --quiet --disable-pip-version-check --requirement "${pins[0]}"
    "$folder/$name/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$client"
    remember "${pins[@]}"
  fi
  ;;
java)
  command -v javac >/dev/null || debian default-jdk-headless
  client=$here/../../../shared/clients/java
  pins=("$here/$name/Peer.java" "$client"/src/main/java/lisa/relay/*.java)
  if ! current "${pins[@]}"; then
    "$client/build.sh" "$folder/$name"
    javac -cp "$folder/$name/lisa-relay.jar" -d "$folder/$name/classes" "$here/$name/Peer.java"
    remember "${pins[@]}"
  fi
  ;;
go)
  command -v go >/dev/null || debian golang-go
  (cd "$here/$name" && GOFLAGS=-mod=mod GOTOOLCHAIN=local go build -o "$folder/$name/peer" .)
  ;;
streaq | arq | taskiq | celery)
  need python3
  pins=("$here/$name/requirements.txt")
  if ! current "${pins[@]}"; then
    rm -rf "$folder/$name/venv"
    python3 -m venv "$folder/$name/venv"
    "$folder/$name/venv/bin/pip" install --quiet --disable-pip-version-check --requirement "${pins[0]}"
    remember "${pins[@]}"
  fi
  ;;
apalis)
  CARGO_TARGET_DIR="$folder/apalis" cargo build --quiet --release --locked --manifest-path "$here/apalis/Cargo.toml"
  ;;
beanstalkd)
  if ! command -v beanstalkd >/dev/null; then debian beanstalkd; fi
  ;;
rabbitmq | nats)
  bash "$here/../../fetch-package.sh" "$name" >/dev/null
  ;;
lisa) ;;
*)
  echo "no peer is called $name" >&2
  exit 1
  ;;
esac
