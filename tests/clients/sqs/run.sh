#!/usr/bin/env bash
# Runs unmodified SQS clients against `lisa-manager dev`: boto3, aiobotocore, the AWS SDK for JavaScript, sqs-consumer with
# sqs-producer, and workers of Celery and Dramatiq. With the argument `moto`, runs the tests of boto3 against moto_server instead,
# which shows that they test SQS.
set -euo pipefail
cd "$(dirname "$0")/../../.."

sources=$PWD/tests/clients/sqs
tools=$(bash tests/fetch-clients.sh sqs)
bin="${LISA_TEST_BIN_DIR:-$PWD/target/debug}"
dir=$(mktemp -d)
pids=()
finish() {
  kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$dir"
}
trap finish EXIT

port=$(bash tests/free-port.sh)
export SQS_ENDPOINT=http://127.0.0.1:$port SQS_SERVER=${1:-lisa}
wait_for() {
  python3 - "$1" <<'PY'
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

cd "$dir"
if [ "$SQS_SERVER" = moto ]; then
  "$tools/bin/moto_server" --host 127.0.0.1 --port "$port" >moto.log 2>&1 &
  pids+=($!)
  wait_for "$SQS_ENDPOINT/moto-api/"
  "$tools/bin/python" -m pytest -q -p no:cacheprovider "$sources/test_sqs.py"
  exit
fi
export SQS_KEY=app SQS_SECRET=wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY
echo "$SQS_SECRET" >secret
cat >lisa.toml <<TOML
[[auth.tokens]]
name = "$SQS_KEY"
sha256 = "$(printf unused | sha256sum | cut -d' ' -f1)"
scopes = ["send", "receive", "read", "operate"]
aws_secret_file = "secret"
TOML
LISA_LOG=warn "$bin/lisa-manager" dev --config lisa.toml --listen "127.0.0.1:$port" >deliveries.log &
pids+=($!)
wait_for "$SQS_ENDPOINT/readyz"

echo '== boto3'
PYTHONDONTWRITEBYTECODE=1 "$tools/bin/python" -m pytest -q -p no:cacheprovider "$sources/test_sqs.py"

# As programs find an endpoint without a change.
export AWS_ENDPOINT_URL_SQS=$SQS_ENDPOINT AWS_ACCESS_KEY_ID=$SQS_KEY AWS_SECRET_ACCESS_KEY=$SQS_SECRET
export AWS_REGION=eu-central-1 AWS_DEFAULT_REGION=eu-central-1

echo '== aiobotocore'
"$tools/bin/python" "$sources/aio.py" from-aio

echo '== JavaScript'
cp "$sources"/{client.js,consumer.js,package.json} .
ln -s "$tools/node_modules" node_modules
NODE_NO_WARNINGS=1 node client.js "$SQS_ENDPOINT" from-node
NODE_NO_WARNINGS=1 node consumer.js "$SQS_ENDPOINT/000000000000/from-node"

echo '== Dramatiq'
"$tools/bin/python" "$sources/dramatiq_app.py"

echo '== Celery'
cp "$sources/celery_app.py" .
"$tools/bin/python" celery_app.py "$SQS_ENDPOINT" celery "$dir"
