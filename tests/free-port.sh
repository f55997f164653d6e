#!/usr/bin/env bash
# Prints a loopback TCP port without a listener. It lies below the range of ephemeral ports, so that no connection takes it before
# its program starts.
exec python3 - <<'PY'
import random, socket

while True:
    port = random.randrange(12_000, 32_000)
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
PY
