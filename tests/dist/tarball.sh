#!/usr/bin/env bash
# Tries the tarball as a new user: `tarball.sh DIST`. Unpacks it into an empty root, and lets a message go through all three
# programs there, over TLS and with a name from /etc/hosts.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
dist=${1:-target/packages}
archive=$(only "$dist"/lisa-*-"$(uname -m)"-linux.tar.gz)
need openssl
need curl
need man man-db

(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
ok "SHA256SUMS"
[ "$(tar tzvf "$archive" --numeric-owner | awk '{ print $2 }' | sort -u)" = 0/0 ] || fail "the owner of a file is not 0/0"
ok "all files belong to root"

root=$work/root
mkdir "$root"
tar xzf "$archive" -C "$root" --strip-components=1
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$tests/../Cargo.toml" | head -n 1)
libraries "$root" "$root"/bin/*
for program in lisa-producer lisa-manager lisa-consumer; do
  [ "$("${in_root[@]}" "$root" "/bin/$program" --version)" = "$program $version" ] || fail "$program --version"
  bash -n "$root/share/bash-completion/completions/$program"
  ! command -v zsh >/dev/null || zsh -n "$root/share/zsh/site-functions/_$program"
  ! command -v fish >/dev/null || fish --no-execute "$root/share/fish/vendor_completions.d/$program.fish"
  page=$(man -l "$root/share/man/man1/$program.1" 2>&1)
  grep -q NAME <<<"$page" || fail "man page of $program"
done
ok "programs start in an empty root; completions and man pages"
for file in "$root"/config/*.toml "$root"/config/*.yaml; do
  case $file in */brokers.toml | */compose.yaml) continue ;; esac
  "${in_root[@]}" "$root" /bin/lisa-manager config check --config "/config/$(basename "$file")" >"$work/check.log" 2>&1 || fail "$file"
done
ok "example configurations"

python3 - "$root" <<'PY' || fail "a link leads nowhere"
import pathlib, re, sys

links = broken = 0
for page in pathlib.Path(sys.argv[1]).rglob("*.md"):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for path in re.findall(r"\]\(([^()\s#:]+)(?:#[^()\s]*)?\)", text):
        links += 1
        if not (page.parent / path).exists():
            broken += 1
            print(f"{page}: {path}", file=sys.stderr)
sys.exit(broken > 0 or links < 100)
PY
ok "the documentation, whose links lead to files"

# The reason is clear where there is no Redis to start.
if "${in_root[@]}" "$root" /bin/lisa-manager dev >"$work/dev.log" 2>&1; then fail "dev without redis-server succeeds"; fi
grep -q redis-server "$work/dev.log" || fail "dev does not say that redis-server is missing"
ok "dev says that redis-server is missing"

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=lisa-redis -addext basicConstraints=critical,CA:FALSE \
  -addext subjectAltName=DNS:lisa-redis.test -keyout "$work/key.pem" -out "$work/ca.pem" 2>/dev/null
tls=$(bash "$tests/free-port.sh")
redis --tls-port "$tls" --tls-cert-file "$work/ca.pem" --tls-key-file "$work/key.pem" --tls-auth-clients no
mkdir "$root/etc"
echo '127.0.0.1 lisa-redis.test' >"$root/etc/hosts"
cp "$work/ca.pem" "$root/ca.pem"
export SSL_CERT_FILE=/ca.pem LISA_REDIS_URL=rediss://lisa-redis.test:$tls
for role in producer manager consumer; do
  at=$(bash "$tests/free-port.sh")
  eval "$role=$at"
  export "LISA_${role^^}__LISTEN=127.0.0.1:$at"
done
for role in producer manager consumer; do
  background "$role" "${in_root[@]}" "$root" "/bin/lisa-$role" run --config /config/separate.toml
done
for at in "$producer" "$manager" "$consumer"; do
  eventually route "$at" /readyz 200
  eventually route "$at" /healthz 200
done
"${in_root[@]}" "$root" /bin/lisa-producer send orders '{"order": 7}' --delay 1s --id order-7 --config /config/separate.toml
eventually grep -q order-7 "$work/consumer.log"
ok "a message goes through all three programs, over TLS and by name"
for child in "${children[@]:1}"; do kill "$child"; done
for child in "${children[@]:1}"; do wait "$child" || fail "exit code $? after SIGTERM"; done
ok "each role exits with 0 after SIGTERM"
