#!/usr/bin/env bash
# Builds DIR/lisa-relay.jar. With TESTS, also TESTS/tests.jar with the programs of src/test, and checks the documentation. Changes
# no other file. Usage: build.sh DIR [TESTS]
set -euo pipefail
mkdir -p "$1" "${2:-$1}"
dir=$(cd "$1" && pwd) tests=$(cd "${2:-$1}" && pwd)
cd "$(dirname "$0")/src"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

compile() { javac --release 17 -encoding UTF-8 -Xlint:all -Werror "$@"; }
compile -d "$made/main" main/java/module-info.java main/java/lisa/relay/*.java
jar --create --file "$dir/lisa-relay.jar" -C "$made/main" .
if [ $# -gt 1 ]; then
  compile -cp "$dir/lisa-relay.jar" -d "$made/test" test/java/lisa/relay/*.java
  jar --create --file "$tests/tests.jar" -C "$made/test" .
  javadoc --release 17 -encoding UTF-8 -quiet -Xdoclint:all -Werror -d "$made/doc" -sourcepath main/java main/java/module-info.java \
    main/java/lisa/relay/*.java
fi
