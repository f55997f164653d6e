#!/usr/bin/env bash
# Builds the programs of the packages: `programs.sh OUT`. They are static, so they need nothing of the machine that they run on.
# Each is built alone: cargo would give it the features of all three otherwise. All of them speak to RabbitMQ and NATS, and export
# spans. Kafka needs a C++ library of 8 MB: a build from source has it.
#
# TARGET builds for another target of Rust, such as aarch64-unknown-linux-gnu, if its standard library (rustup target add) and a C
# compiler (Debian package gcc-aarch64-linux-gnu) are installed. This machine cannot run such programs: copy completions/ and man/,
# which their verbs write, from programs of this machine to OUT.
#
# DIST_SYMBOLS=1 also writes OUT/symbols/PROGRAM.debug, with which gdb and addr2line read crash reports. The build takes longer.
set -euo pipefail

if [ $# -ne 1 ]; then
  echo "usage: $0 OUT" >&2
  exit 2
fi
# The bills of materials, and the licenses of the libraries, come from tools that are installed once.
command -v cargo-cyclonedx >/dev/null || ${CARGO:-cargo} install --locked cargo-cyclonedx --version 0.5.9
command -v cargo-about >/dev/null || ${CARGO:-cargo} install --locked cargo-about --version 0.9.3 --features cli
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$(dirname "$0")" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
target=${TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
# The tools of another architecture.
prefix=
if [ "${target%%-*}" != "$(uname -m)" ]; then
  prefix=${target%%-*}-linux-gnu-
  linker=CARGO_TARGET_${target^^}_LINKER
  linker=${linker//-/_}
  export "$linker=${!linker:-${prefix}gcc}"
fi
rm -rf "$out/symbols"
if [ -n "${DIST_SYMBOLS:-}" ]; then
  export CARGO_PROFILE_DIST_DEBUG=line-tables-only CARGO_PROFILE_DIST_STRIP=none
  mkdir -p "$out/symbols"
fi
# A target of its own, so that the flags do not apply to build scripts. Packed relocations save 0.7 MB of the manager. Paths of this machine would change the bytes. A static program
# cannot look up `getrandom` at run time, and would need /dev/random instead, which an empty root does not have.
export RUSTFLAGS="-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs --cfg getrandom_backend=\"linux_getrandom\" --remap-path-prefix=$PWD=lisa --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
for program in producer manager consumer; do
  case $program in
    producer) features=cli,otel,source-amqp,source-nats ;;
    manager) features=keda,otel,lisa-producer/source-amqp,lisa-producer/source-nats ;;
    consumer) features=cli,otel,sink-amqp,sink-nats ;;
  esac
  $cargo build --locked --profile dist --target "$target" -p "lisa-$program" --bin "lisa-$program" --features "$features"
  cp "target/$target/dist/lisa-$program" "$out/"
  if [ -n "${DIST_SYMBOLS:-}" ]; then
    "${prefix}objcopy" --only-keep-debug "$out/lisa-$program" "$out/symbols/lisa-$program.debug"
  fi
  # The linker leaves the symbols in some of them.
  "${prefix}strip" "$out/lisa-$program"
  # It writes a file for each program of the workspace, with paths of this machine.
  $cargo cyclonedx --quiet --format json --describe binaries --target "$target" --manifest-path "$program/Cargo.toml" \
    --features "$features"
  sed "s|path+file://$PWD|path+file://lisa|g" "$program/lisa-${program}_bin.cdx.json" >"$out/lisa-$program.cdx.json"
  rm -f {producer,manager,consumer,tests}/*_bin.cdx.json
done
# Lisa's own crates are left out as private ones. A copy of the workspace says that they are.
private=$(mktemp -d)
trap 'rm -rf "$private"' EXIT
tar -cf - --exclude=target --exclude=node_modules Cargo.toml Cargo.lock producer manager consumer shared tests | tar -xf - -C "$private"
sed -i 's/^repository\.workspace = true$/publish = false/' "$private"/*/Cargo.toml "$private"/*/*/Cargo.toml
$cargo about generate --locked --workspace --all-features --target "$target" --manifest-path "$private/Cargo.toml" \
  --config config/package/licenses.toml --output-file "$out/third-party-licenses.txt" config/package/licenses.hbs
ls -l "$out"
