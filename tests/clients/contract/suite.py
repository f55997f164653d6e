"""The contract suite of the clients: see shared/clients/README.md.

python suite.py [CLIENT...] [--only TEXT]. `LISA_URL` is the URL of `lisa-manager dev`, and `LISA_DRIVERS` a JSON object with the
command of each client's driver: {"python": ["python", "driver.py"]}. Scenarios are in scenarios.toml.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
import tomllib
import urllib.error
import urllib.request
from asyncio.subprocess import PIPE, Process
from base64 import b64encode
from pathlib import Path
from typing import Any
from uuid import uuid4

from proxy import SECRET, Proxy

RELAY = os.environ["LISA_URL"]
CONCURRENCY = 10
# The longest time of a scenario, in seconds.
LIMIT = 240
# The longest wait for what the relay holds, in seconds.
PATIENCE = 60
# The time limit of a request, in milliseconds, for busy machines.
TIMEOUT = 60_000
BEARER = "a-bearer-token"
# The most memory of a driver, in KiB: twice that of a Java program with little to do.
MAX_MEMORY = 512 * 1024


class Failure(Exception):
    pass


class Driver:
    """A program that drives one client library. It runs many scenarios, one after another: a start costs more than most."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.process: Process | None = None
        self.log = bytearray()
        # The tokens of all deliveries that it has settled or extended.
        self.tokens: set[str] = set()

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(*self.command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=64 << 20)
        self.errors = asyncio.ensure_future(self._read_log(self.process.stderr))

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(1 << 16):
            self.log += chunk

    async def call(self, **command: Any) -> Any:
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        line = await self.process.stdout.readline()
        if not line:
            await self.end()
            raise Failure(f"the driver ended at {command['call']}: {self.log.decode()[-2000:]}")
        if SECRET.encode() in line:
            raise Failure(f"an error quotes the answer: {line.decode()}")
        return json.loads(line)

    def memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))

    async def end(self, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        self.process.stdin.close()
        await self.process.wait()
        await self.errors


class Drivers:
    """The idle drivers of one client library."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.idle: list[Driver] = []

    async def take(self) -> Driver:
        if self.idle:
            return self.idle.pop()
        driver = Driver(self.command)
        await driver.start()
        return driver

    async def end(self) -> None:
        await asyncio.gather(*(driver.end() for driver in self.idle))


def request(method: str, path: str, body: Any = None) -> tuple[int, Any]:
    asked = urllib.request.Request(RELAY + path, method=method, data=None if body is None else json.dumps(body).encode())
    asked.add_header("content-type", "application/json")
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            # The relay limits how much of its time one client takes.
            if error.code != 503 or time.monotonic() > deadline:
                return error.code, json.load(error)
            time.sleep(0.5)


class Run:
    """A run of a scenario with a client."""

    def __init__(self, scenario: dict[str, Any], driver: Driver) -> None:
        self.scenario, self.topic, self.driver = scenario, f"contract-{uuid4().hex}", driver
        # The ids of the scenario's messages, by their payload.
        self.ids: dict[str, str] = {}
        # The cursor of the next page, and the last version.
        self.next: str | None = None
        self.version: int | None = None

    async def run(self) -> None:
        scenario = self.scenario
        async with Proxy(RELAY, scenario.get("faults", [])) as proxy:
            await asyncio.to_thread(self._seed, scenario.get("seed", {}))
            await self._make_client(proxy)
            for step in scenario["steps"]:
                await self._step(step, proxy)
            check("the memory of the driver, in KiB", self.driver.memory(), {"max": MAX_MEMORY})
            check("requests after a redirect", proxy.redirected, 0)
            for part, count in scenario.get("requests", {}).items():
                check(f"requests with {part}", sum(part in one.line for one in proxy.requests), count)
            for name, count in scenario.get("headers", {}).items():
                check(f"requests with the header {name}", sum(name in one.headers for one in proxy.requests), count)
            for part, count in scenario.get("at_once", {}).items():
                most = max(one.at_once for one in proxy.requests if part in one.line)
                check(f"requests at once with {part}", most, count)
            self._check_requests(proxy)
            if "ends" in scenario:
                await asyncio.to_thread(self._check_ends, scenario["ends"])

    def _seed(self, seed: dict[str, Any]) -> None:
        self.ids = {str(n): f"{self.topic}-{n}" for n in range(seed.get("count", 0))}
        if self.ids:
            encoded = ((b64encode(payload.encode()).decode(), id) for payload, id in self.ids.items())
            messages = [{"id": id, "payload_base64": payload, **seed.get("options", {})} for payload, id in encoded]
            keys = seed.get("keys")
            for n, message in enumerate(messages if keys else []):
                message["key"] = f"k {n % keys}"
            status, results = request("POST", f"/v1/topics/{self.topic}/messages:batch", messages)
            check("the seed", (status, [one for one in results if "error" in one]), (200, []))
            # So that one pull can return all of them. Of each key, one message is ready.
            ready = min(keys or len(messages), len(messages))
            counts = {"ready": ready, "parked": len(messages) - ready}
            check("the counts of the topic", self._counts(counts), counts)

    async def _make_client(self, proxy: Proxy) -> None:
        options = {"timeout": TIMEOUT, **self.scenario.get("client", {})}
        check("the client", await self.driver.call(call="client", url=proxy.url, token=BEARER, **options), {})

    async def _step(self, step: dict[str, Any], proxy: Proxy) -> None:
        step = dict(step)
        expected, seconds = step.pop("expect", None), step.pop("seconds", {"max": LIMIT})
        in_order = step.pop("in_order", False)
        messages, kill_when = step.pop("count", None), step.pop("kill_when", None)
        if step["call"] == "send" or messages is not None:
            step = self._with_messages(step, messages)
        elif "id" in step:
            step["id"] = self.ids.get(step["id"], step["id"])
        step.setdefault("topic", self.topic)
        if step["call"].endswith("_token") and step["call"] != "own_token":
            step.setdefault("token", self.topic)
        if step["call"].startswith("list_") and step.setdefault("prefix", self.topic) == "":
            del step["prefix"]
        if step["call"].endswith("_schedule"):
            step["schedule"] = step.get("schedule", self.topic).replace("SECOND", f"{self.topic}-2")
        if step.get("if_match") == "VERSION":
            step["if_match"] = self.version
        if step.get("cursor") == "NEXT":
            step["cursor"] = self.next
        if "definition" in step:
            step["definition"] = {"topic": self.topic, **step["definition"]}
        if step.get("options", {}).get("cursor") == "NEXT":
            step["options"] = {**step["options"], "cursor": self.next}
        began = time.monotonic()
        call = self.driver.call(**step)
        if kill_when is not None:
            return await self._kill_when(kill_when, call, proxy)
        answer = await asyncio.wait_for(call, LIMIT)
        check(f"the seconds of {step['call']}", time.monotonic() - began, seconds)
        if isinstance(answer, dict) and step["call"] == "send" and "id" in answer:
            self.ids[step["payload"]] = answer["id"]
        if isinstance(answer, dict):
            self.next, self.version = answer.get("next"), answer.get("version", self.version)
        if messages is not None and isinstance(answer, list):
            check("the number of results", len(answer), len(step["messages"]))
            results = zip(step["messages"], answer, strict=True)
            for message, result in results:
                check(f"the id of the result of {message['payload']}", id_of(result), message["id"])
        if expected is not None:
            check(step["call"], answer, expected)
        if in_order:
            self._check_order([int(one["payload"]) for one in answer["handled"]])

    def _check_order(self, handled: list[int]) -> None:
        """Checks that the messages of each key were handled in order, each at least once."""
        seed = self.scenario["seed"]
        for key in range(seed["keys"]):
            found = [n for n in handled if n % seed["keys"] == key]
            check(f"the order of key {key}", found, sorted(found))
            check(f"the messages of key {key}", sorted(set(found)), list(range(key, seed["count"], seed["keys"])))

    async def _kill_when(self, ends: dict[str, Any], call: Any, proxy: Proxy) -> None:
        called = asyncio.ensure_future(call)
        while not fits(await asyncio.to_thread(self._counts), ends):
            if called.done():
                raise Failure(f"work ended: {await called}")
            await asyncio.sleep(0.05)
        await self.driver.end(kill=True)
        await asyncio.gather(called, return_exceptions=True)
        await self.driver.start()
        await self._make_client(proxy)

    def _with_messages(self, step: dict[str, Any], count: int | None) -> dict[str, Any]:
        if count is None:
            return step
        refused, options = step.pop("refused", None), step.pop("options", {})
        messages = [{"payload": str(n), "id": f"{self.topic}-{n}", **options} for n in range(count)]
        self.ids |= {one["payload"]: one["id"] for one in messages}
        for message in messages[::refused] if refused else []:
            # There is no such message.
            message["replace"] = "gone"
            del self.ids[message["payload"]]
        return {**step, "messages": messages}

    def _check_requests(self, proxy: Proxy) -> None:
        for one in proxy.requests:
            check(f"the authorization of {one.line}", one.headers.get("authorization"), f"Bearer {BEARER}")
            check(f"accept-encoding of {one.line}", one.headers.get("accept-encoding"), "identity")
            if one.line.split("?")[0].endswith(("deliveries:settle HTTP/1.1", "deliveries:extend HTTP/1.1", "/settle-and-pull")):
                tokens = [item["token"] for item in json.loads(one.body)]
                check(f"the items of {one.line} that have a token twice", len(tokens) - len(set(tokens)), 0)
                self.driver.tokens |= set(tokens)
        seen = "\n".join(one.line for one in proxy.requests) + self.driver.log.decode(errors="replace")
        leaked = [token for token in {BEARER, SECRET, *self.driver.tokens} if token in seen]
        check("tokens in logs and URLs", leaked, [])

    def _check_ends(self, expected: dict[str, Any]) -> None:
        check("the counts of the topic", self._counts(expected), expected)
        # Each lookup costs the relay a search, so only some are checked.
        for payload, id in list(self.ids.items())[:: max(1, len(self.ids) // 10)]:
            status, message = request("GET", f"/v1/topics/{self.topic}/messages/{id}")
            check(f"the payload of {id}", message.get("payload", payload), payload)
            if error := self.scenario.get("error"):
                check(f"the error of {payload}", error in message["error"], True)

    def _counts(self, expected: Any = None) -> dict[str, int]:
        """Returns the counts of the topic and of its group. Waits for those expected."""
        deadline = time.monotonic() + PATIENCE
        while True:
            _, topic = request("GET", f"/v1/topics/{self.topic}")
            stats = topic.get("stats", {"counters": {}, "groups": [{}]})
            group = next(one for one in stats["groups"] if one.get("group", "default") == "default")
            counts = {**stats, **stats["counters"], **group}
            if expected is None or fits(counts, expected) or time.monotonic() > deadline:
                return counts
            # Another group of the topic may still handle its messages.
            time.sleep(0.1)


def id_of(result: dict[str, Any]) -> Any:
    return result["error"].get("id") if "error" in result else result.get("id")


def check(what: str, found: Any, expected: Any) -> None:
    if not fits(found, expected):
        if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() & found.keys():
            found = {name: found.get(name) for name in expected}
        raise Failure(f"{what} is {str(found)[:1500]}, expected {expected}")


def fits(found: Any, expected: Any) -> bool:
    """Compares what was found. An object needs only the expected fields; {"min", "max"} is a range, {"all"} each item of a list."""
    if isinstance(expected, dict) and expected.keys() & {"min", "max"}:
        return isinstance(found, (int, float)) and expected.get("min", 0) <= found <= expected.get("max", found)
    if isinstance(expected, dict) and "all" in expected:
        return isinstance(found, list) and all(fits(one, expected["all"]) for one in found)
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(fits(found.get(name), value) for name, value in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(fits, found, expected))
    return bool(found == expected)


def scenarios() -> list[dict[str, Any]]:
    """Reads the scenarios. One with `each` is run for each of its values, in place of "EACH"."""
    read = tomllib.loads(Path(__file__).with_name("scenarios.toml").read_text())["scenario"]
    expanded = []
    for scenario in read:
        for value in scenario.pop("each", [None]):
            text = json.dumps(scenario)
            if value is not None:
                text = text.replace('"EACH"', json.dumps(value)).replace("EACH", str(value))
            expanded.append(json.loads(text))
    return expanded


async def main() -> int:
    drivers = {client: Drivers(command) for client, command in json.loads(os.environ["LISA_DRIVERS"]).items()}
    parser = argparse.ArgumentParser(description="Runs the contract suite.")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"default: {' '.join(drivers)}")
    parser.add_argument("--only", default="", metavar="TEXT", help="only scenarios with this in their name")
    options = parser.parse_args()
    slots, failures, times, began = asyncio.Semaphore(CONCURRENCY), [], [], time.monotonic()

    async def run(client: str, scenario: dict[str, Any]) -> None:
        async with slots:
            start = time.monotonic()
            driver = await drivers[client].take()
            try:
                await asyncio.wait_for(Run(scenario, driver).run(), LIMIT)
                drivers[client].idle.append(driver)
            except Exception as error:
                failures.append(f"{client}: {scenario['name']}: {str(error) or repr(error)}")
                print(f"FAILED {failures[-1]}", flush=True)
                if driver.process.returncode is None:
                    await driver.end(kill=True)
            times.append((time.monotonic() - start, f"{client}: {scenario['name']}"))

    chosen = [one for one in scenarios() if options.only in one["name"]]
    await asyncio.gather(*(run(client, one) for client in options.clients or drivers for one in chosen))
    await asyncio.gather(*(one.end() for one in drivers.values()))
    slowest = ", ".join(f"{name} {took:.0f} s" for took, name in sorted(times, reverse=True)[:3])
    print(f"{len(times) - len(failures)} passed, {len(failures)} failed in {time.monotonic() - began:.0f}s; the slowest: {slowest}")
    return 1 if failures or not times else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
