#!/usr/bin/env bash
# Generates clients for Python and TypeScript from /openapi.json of the running program, and uses them: send, look up, cancel,
# and the answers of the manager. Also lints the descriptions, and checks that each answer of the manager has a type.
# Then builds the clients in shared/clients into target/clients, and runs their tests and the contract suite against `lisa-manager
# dev`. Installs a JDK and Go with the system's package manager. Where that fails, the clients in Java and Go are skipped and
# reported, but with CI set they fail.
# With the argument `planted`, it plants bugs in the clients at the end, and the suite must find each one.
set -euo pipefail
cd "$(dirname "$0")/../.."

root=$PWD
sources=$root/tests/clients
TOKEN=token-of-this-run
tools=$(bash tests/fetch-clients.sh)
bin="${LISA_TEST_BIN_DIR:-$PWD/target/debug}"
export PATH="$tools/bin:$tools/node_modules/.bin:$PATH"
export REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true
dir=$(mktemp -d)
pids=()
finish() {
  kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$dir"
}
trap finish EXIT

free_port() { bash "$root/tests/free-port.sh"; }
cat >"$dir/lisa.toml" <<TOML
redis.url = "unix://$dir/redis.sock"
topics.orders.groups = ["billing"]
[[auth.tokens]]
name = "all"
sha256 = "$(printf '%s' "$TOKEN" | sha256sum | cut -d' ' -f1)"
scopes = ["send", "read", "operate", "tokens"]
TOML
redis-server --port 0 --unixsocket "$dir/redis.sock" --dir "$dir" --save '' --appendonly no >"$dir/redis.log" &
pids+=($!)
# Waits until a program is ready. Argument: its address.
wait_ready() {
  python3 - "$1/readyz" <<'PY'
import sys, time, urllib.request

for left in reversed(range(300)):
    try:
        urllib.request.urlopen(sys.argv[1], timeout=10)
        break
    except OSError:
        if left == 0:
            raise
        time.sleep(0.2)
PY
}
# Starts a manager and waits until it is ready. Arguments: the name of its description, its port, its options.
start() {
  local name=$1
  LISA_LOG=warn "$bin/lisa-manager" run --config "$dir/lisa.toml" --listen "127.0.0.1:$2" "${@:3}" &
  pids+=($!)
  wait_ready "http://127.0.0.1:$2"
  python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "http://127.0.0.1:$2/openapi.json" "$dir/$name.json"
}
port=$(free_port)
start both "$port" --with-producer
start manager "$(free_port)"

cd "$dir"
echo '== lint'
redocly lint both.json manager.json

echo '== python'
openapi-python-client generate --path both.json --meta none --output-path lisa >generate.log 2>&1 || { cat generate.log; exit 1; }
if grep 'will not be generated' generate.log; then cat generate.log; exit 1; fi
PYTHONPATH=. python "$sources/client.py" "http://127.0.0.1:$port" "$TOKEN"

echo '== typescript'
cp "$sources"/{client.ts,tsconfig.json,package.json} .
ln -s "$tools/node_modules" node_modules
openapi-typescript both.json --output types.ts
openapi-typescript manager.json --output manager.ts
# Headers of answers are of any type.
if grep -nE '(: |\| |<)unknown\b' manager.ts | grep -vF '[name: string]: unknown;'; then
  echo 'an answer of the manager has no type' >&2
  exit 1
fi
tsc --project .
node client.js "http://127.0.0.1:$port" "$TOKEN"

echo '== python client'
client=$root/shared/clients/python
hook=$(free_port)
dev=$(free_port)
secret=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
cat >dev.toml <<TOML
redis.url = "unix://$dir/redis.sock"
namespace = "dev"
topic_defaults.key_index = true
topics.small.max_messages = 1
topics.hooks.groups = ["webhooks"]
[topics.jobs]
max_attempts = 2
retry = { kind = "fixed", delay = "10ms" }
[schedules.leap-day]
topic = "jobs"
cron = "0 0 3 29 2 *"
[[consumer.subscriptions]]
topic = "hooks"
group = "webhooks"
sink = { type = "http", url = "http://127.0.0.1:$hook/", secret = "$secret", allow_private = true }
TOML
LISA_LOG=warn "$bin/lisa-manager" dev --config dev.toml --redis-url "unix://$dir/redis.sock" --listen "127.0.0.1:$dev" >dev.log 2>&1 &
pids+=($!)
wait_ready "http://127.0.0.1:$dev"
LISA_LOG=warn "$bin/lisa-consumer" run --config dev.toml --listen "127.0.0.1:$(free_port)" &
pids+=($!)
ruff check --quiet "$client"
ruff format --quiet --check "$client"
(cd "$client" && MYPYPATH=src mypy --cache-dir "$dir/mypy" src tests)
mkdir -p "$root/target/clients"
python -m build --no-isolation --outdir "$root/target/clients" "$client" >build.log 2>&1 || { cat build.log; exit 1; }
pip install --quiet --disable-pip-version-check --no-deps --target site "$root"/target/clients/lisa_relay-*.whl
LISA_URL="http://127.0.0.1:$dev" LISA_URL_WITH_TOKENS="http://127.0.0.1:$port" LISA_TOKEN=$TOKEN LISA_HOOK_PORT=$hook \
  LISA_HOOK_SECRET=$secret PYTHONPATH=site python -B -m pytest --quiet -p no:cacheprovider "$client/tests"

echo '== typescript client'
client=$root/shared/clients/typescript
mkdir -p package modules/node_modules/lisa-relay
cp "$client"/{package.json,README.md} package/
tsc --project "$client" --outDir "$dir/package/dist"
(cd package && npm pack --silent --pack-destination "$root/target/clients" >/dev/null)
tar -xzf "$root"/target/clients/lisa-relay-*.tgz -C modules/node_modules/lisa-relay --strip-components 1
cp "$client"/test/*.mjs modules/
LISA_URL="http://127.0.0.1:$dev" LISA_URL_WITH_TOKENS="http://127.0.0.1:$port" LISA_TOKEN=$TOKEN LISA_HOOK_PORT=$hook \
  LISA_HOOK_SECRET=$secret LISA_README=$client/README.md node --test modules/*.test.mjs

drivers=(
  "\"python asyncio\": [\"python\", \"-B\", \"$root/shared/clients/python/tests/driver.py\"]"
  "\"python threads\": [\"python\", \"-B\", \"$root/shared/clients/python/tests/driver.py\", \"threads\"]"
  "\"typescript\": [\"node\", \"$dir/modules/driver.mjs\"]"
  "\"typescript fetch\": [\"node\", \"$dir/modules/driver.mjs\", \"fetch\"]"
)
# Succeeds if a program is there, or can be installed. Arguments: the program, its package, its language.
have() {
  command -v "$1" >/dev/null || bash "$root/tests/apt-install.sh" "$2" || {
    echo "SKIPPED: the client in $3 was not tested, because $2 cannot be installed" >&2
    [ -z "${CI:-}" ] || exit 1
    return 1
  }
}

if have javac default-jdk-headless Java; then
  echo '== java client'
  bash "$root/shared/clients/java/build.sh" java java
  cp java/lisa-relay.jar "$root/target/clients/"
  java -ea -cp java/lisa-relay.jar:java/tests.jar lisa.relay.Tests
  drivers+=("\"java\": [\"java\", \"-XX:TieredStopAtLevel=1\", \"-XX:+UseSerialGC\", \"-cp\", \"$dir/java/lisa-relay.jar:$dir/java/tests.jar\", \"lisa.relay.Driver\"]")
fi
if have go golang-go Go; then
  echo '== go client'
  export GOCACHE=${XDG_CACHE_HOME:-$HOME/.cache}/lisa-tests/go GOFLAGS=-mod=mod GOTOOLCHAIN=local
  (
    cd "$root/shared/clients/go"
    unformatted=$(gofmt -l .)
    [ -z "$unformatted" ] || { echo "not formatted: $unformatted" >&2; exit 1; }
    go vet ./...
    go test ./...
    go build -o "$dir/driver" ./internal/driver
  )
  drivers+=("\"go\": [\"$dir/driver\"]")
fi

echo '== the contract'
python -B "$sources/contract/planted.py" --check
LISA_URL="http://127.0.0.1:$dev" LISA_DRIVERS="{$(IFS=,; echo "${drivers[*]}")}" PYTHONPATH=site python -B "$sources/contract/${1:-suite}.py"
