#!/usr/bin/env bash
# Builds the programs of the packages: `programs.sh OUT`. They are static, so they need nothing of the machine that they run on.
# Each is built alone: cargo would give it the features of all three otherwise. All of them speak to RabbitMQ and NATS. Kafka needs
# a C++ library of 8 MB: a build from source has it.
set -euo pipefail

if [ $# -ne 1 ]; then
  echo "usage: $0 OUT" >&2
  exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
target=$(rustc -vV | sed -n 's/^host: //p')
# A target of its own, so that the flags do not apply to build scripts. Paths of this machine would change the bytes.
export RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$PWD=lisa --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
for program in producer manager consumer; do
  case $program in
    producer) features=cli,source-amqp,source-nats ;;
    manager) features=lisa-producer/source-amqp,lisa-producer/source-nats ;;
    consumer) features=cli,sink-amqp,sink-nats ;;
  esac
  $cargo build --locked --profile dist --target "$target" -p "lisa-$program" --bin "lisa-$program" --features "$features"
  cp "target/$target/dist/lisa-$program" "$out/"
done
ls -l "$out"
