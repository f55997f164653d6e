#!/usr/bin/env bash
# Checks config/compose.yaml: `compose.sh BIN`, where BIN has the built programs. Validates it against the Compose Specification,
# starts Redis by its command, and checks the configuration of each role in its environment. Needs no containers.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
bin=$(cd "${1:-target/debug}" && pwd)
config=$tests/../config
cache venv "$here/requirements.txt" bash -c "python3 -m venv . && bin/pip install --quiet --disable-pip-version-check -r '$here/requirements.txt'"

"$cached/venv/bin/python" - "$config/compose.yaml" "$work" <<'PY'
import json, pathlib, re, sys

import yaml
from compose_spec import PyCompose

text = open(sys.argv[1]).read()
# Variables have their defaults.
PyCompose.from_json(json.dumps(yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))))
compose = yaml.safe_load(text)
work = pathlib.Path(sys.argv[2])
for name, service in compose["services"].items():
    if name == "redis":
        (work / "redis.command").write_text("\0".join(service["command"][2:]))
        continue
    assert service["image"].startswith("${LISA_IMAGE:-lisa:"), service["image"]
    assert service["read_only"] and service["cap_drop"] == ["ALL"], name
    assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
    # The configuration is mounted here, and read from where it is in this repository.
    (work / f"{name}.environment").write_text("\n".join(f"{key}={value}" for key, value in service["environment"].items()))
PY
ok "valid for the Compose Specification"

mapfile -d '' -t command <"$work/redis.command"
port=$(bash "$tests/free-port.sh")
bash "$tests/install-redis.sh"
background redis "$(command -v redis-server || command -v valkey-server)" "$config/redis.conf" "${command[@]}" --port "$port" --dir "$work"
eventually answers "$port"
ok "Redis starts with config/redis.conf and its command"
for role in producer manager consumer; do
  mapfile -t environment <"$work/$role.environment"
  at=$(bash "$tests/free-port.sh")
  (cd "$config" && env "${environment[@]}" LISA_CONFIG=separate.toml "$bin/lisa-$role" config check) >"$work/check.log" 2>&1 || fail "$role"
  if grep -q warning "$work/check.log"; then fail "a warning"; fi
  background "$role" env "${environment[@]}" LISA_CONFIG="$config/separate.toml" LISA_REDIS_URL="redis://127.0.0.1:$port" \
    "LISA_${role^^}__LISTEN=0.0.0.0:$at" "$bin/lisa-$role" run
  eventually route "$at" /readyz 200
  ok "$role is ready in its environment"
done
