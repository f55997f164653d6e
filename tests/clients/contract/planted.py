"""Plants bugs in copies of the clients, one at a time. The contract suite must fail each time.

python planted.py [CLIENT...]. With --check, it only looks for the text of each bug in the clients. It needs the tools that
tests/clients/run.sh installs, and `LISA_URL` as the suite does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
CLIENTS = HERE.parents[2] / "shared/clients"
# Builds the driver of a client in the current folder.
BUILDS = {
    "python": "true",
    "typescript": "tsc --outDir dist",
    "java": "./build.sh built built",
    "go": "go build -o driver ./internal/driver",
}
DRIVERS = {
    "python": ["python", "-B", "tests/driver.py"],
    "typescript": ["node", "test/driver.mjs"],
    "java": ["java", "-XX:TieredStopAtLevel=1", "-cp", "built/lisa-relay.jar:built/tests.jar", "lisa.relay.Driver"],
    "go": ["./driver"],
}


def check(client: str, name: str, file: str, text: str) -> None:
    count = (CLIENTS / client / file).read_text().count(text)
    if count != 1:
        sys.exit(f"{client}: {name}: its text is in {file} {count} times")


def passes(client: str, only: str, file: str, text: str, replacement: str) -> bool:
    """Runs the suite with a changed copy of a client. Returns whether it passes."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / client
        shutil.copytree(CLIENTS / client, copy, ignore=shutil.ignore_patterns("node_modules", "dist", "__pycache__"))
        path = copy / file
        path.write_text(path.read_text().replace(text, replacement))
        subprocess.run(["bash", "-c", BUILDS[client]], cwd=copy, check=True, stdout=sys.stderr)
        command = [sys.executable, str(HERE / "suite.py"), client, "--only", only]
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "LISA_DRIVERS": json.dumps({client: DRIVERS[client]})}
        suite = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        print(suite.stdout, end="", file=sys.stderr)
        return suite.returncode == 0


def main() -> None:
    bugs = tomllib.loads((HERE / "planted.toml").read_text())["bug"]
    planted = [(client, bug["name"], bug["only"], bug[client]) for bug in bugs for client in BUILDS]
    for client, name, _, (file, text, _) in planted:
        check(client, name, file, text)
    if sys.argv[1:] == ["--check"]:
        return
    missed = 0
    passed = set()
    for client, name, only, change in planted:
        if sys.argv[1:] and client not in sys.argv[1:]:
            continue
        file, text, _ = change
        if (client, only) not in passed and not passes(client, only, file, text, text):
            sys.exit(f"{client}: {only}: the suite fails without a bug")
        passed.add((client, only))
        found = not passes(client, only, *change)
        missed += not found
        print(f"{'found ' if found else 'MISSED'} {client}: {name}", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
