#!/usr/bin/env bash
# Builds DIR/lisa-relay.jar, and DIR/tests.jar with the programs of src/test. Also checks the documentation. Usage: build.sh DIR
set -euo pipefail
mkdir -p "$1"
dir=$(cd "$1" && pwd)
cd "$(dirname "$0")/src"

rm -rf "$dir/main" "$dir/test"
javac --release 17 -encoding UTF-8 -Xlint:all -Werror -d "$dir/main" main/java/module-info.java main/java/lisa/relay/*.java
jar --create --file "$dir/lisa-relay.jar" -C "$dir/main" .
javac --release 17 -encoding UTF-8 -Xlint:all -Werror -cp "$dir/lisa-relay.jar" -d "$dir/test" test/java/lisa/relay/*.java
jar --create --file "$dir/tests.jar" -C "$dir/test" .
javadoc --release 17 -encoding UTF-8 -quiet -Xdoclint:all -Werror -d "$dir/doc" -sourcepath main/java main/java/module-info.java main/java/lisa/relay/*.java
