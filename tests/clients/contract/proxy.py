"""A proxy in front of the relay that misbehaves as the scenario requires, and records the requests."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# A text of an answer that no error may quote: it could be the token of a delivery.
SECRET = "!!secret!!"

DELIVERY = {
    "token": "t", "id": "x", "attempt": 1, "max_attempts": 2, "headers": {}, "payload": "x",
    "due_at": "2026-01-01T00:00:00.000Z", "lease_until": "2026-01-01T00:00:00.000Z",
}  # fmt: skip

TOKEN = {
    "token": "t", "declared_in_file": False, "version": 7, "scopes": ["send"], "topics": ["t-*"], "has_expired": False, "max_topics": 3,
    "is_rotating": False, "used": {"topics": 0},
}  # fmt: skip

# Answers in place of Lisa's: status, headers, body.
ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "a page": (200, {"content-type": "text/html"}, b"<html>Please log in</html>"),
    "an empty object": (200, {}, b"{}"),
    "half an answer": (200, {}, b'{"messages": [{}], "garbage": 0, "in_flight": 0, "done": 0, "topic": "t", "removal": "drain", '
                       b'"schedule": "s", "definition": {}, "next_times": [], "warnings": [], "paused": true, "id": "x", '
                       b'"group": "g", "left": 0}'),
    "wrong types": (200, {}, json.dumps({
        "messages": {}, "next": 7, "garbage": None, "in_flight": "0", "cancelled": None, "rescheduled": None, "done": None, "found": None,
        "topics": {}, "schedules": {}, "tokens": {}, "scopes": {}, "token": "t", "groups": {}, "topic": "t", "epoch": "1", "settings": {}, "removal": "drain", "stored": "0", "group": "g", "left": "0",
        "schedule": "s", "version": "1", "definition": {}, "next_times": {}, "warnings": {}, "paused": 1, "changed": 0, "id": "x", "sent": "no",
    }).encode()),
    "null": (200, {}, b"null"),
    "no results": (200, {}, b"[]"),
    "deep nesting": (200, {}, b"[" * 100_000),
    "bytes that are not UTF-8": (200, {}, b'[{"token": "' + SECRET.encode() + b'\xff"}]'),
    "damaged JSON": (200, {}, b'[{"token": "' + SECRET.encode() + b'" x'),
    "two deliveries": (200, {}, json.dumps({"deliveries": [DELIVERY, DELIVERY]}).encode()),
    "a token": (200, {}, json.dumps(TOKEN).encode()),
    "two tokens": (200, {}, json.dumps({
        "tokens": [TOKEN, TOKEN], "next": "n", "damaged": [{"token": "d", "error": "no record"}],
    }).encode()),
    "nothing": (204, {}, b""),
    "damaged gzip": (200, {"content-encoding": "gzip"}, b"this is not gzip"),
    "an odd problem": (503, {}, b'{"code": {}, "errors": 7}'),
    "unauthorized": (401, {}, b'{"status": 401, "code": "unauthorized", "detail": "no token"}'),
    "unavailable": (503, {}, b'{"status": 503, "code": "unavailable", "detail": "not now"}'),
    "unavailable for a second": (503, {"retry-after": "1"}, b'{"status": 503, "code": "unavailable"}'),
}


@cache
def bomb() -> bytes:
    return gzip.compress(b" " * (256 << 20), 1)


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes
    # The requests with this first line that were in flight when it came, itself included.
    at_once: int


@dataclass
class Proxy:
    relay: str
    faults: list[dict[str, Any]]
    requests: list[Request] = field(default_factory=list)
    # The requests that followed a redirect.
    redirected: int = 0
    url: str = ""

    async def __aenter__(self) -> Proxy:
        self._seen = [0] * len(self.faults)
        # By first line.
        self._in_flight: Counter[str] = Counter()
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._server.close()

    async def _connection(self, *client: Any) -> None:
        try:
            while await self._exchange(client):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The client has left, or the suite has ended.
            pass
        finally:
            client[1].close()

    async def _exchange(self, client: Streams) -> bool:
        """Answers a request. Returns false if the connection has to be closed."""
        head = (await client[0].readuntil(b"\r\n\r\n")).decode()
        line, *rest = head.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (one.split(":", 1) for one in rest)}
        body = await client[0].readexactly(int(headers.get("content-length", 0)))
        self._in_flight[line] += 1
        self.requests.append(Request(line, headers, body, self._in_flight[line]))
        self.redirected += "/elsewhere" in line
        try:
            return await self._respond(client, line, head, body)
        finally:
            self._in_flight[line] -= 1

    async def _respond(self, client: Streams, line: str, head: str, body: bytes) -> bool:
        fault = self._fault(line)
        does = fault.get("do", "forward")
        await asyncio.sleep(fault.get("delay", 0))
        if does == "refuse":
            return False
        if does == "dribble":
            await self._write_forever(client, b"HTTP/1.1 200 OK\r\ncontent-length: 999999\r\n\r\n", b" ", 0.05)
        if does == "dribble the head":
            await self._write_forever(client, b"HTTP/1.1 200 OK\r\nx: ", b"x", 0.05)
        if does == "send without end":
            chunk = b"100000\r\n" + bytes(0x100000) + b"\r\n"
            await self._write_forever(client, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", chunk, 0)
        if does == "redirect":
            return await self._answer(client, fault["status"], {"location": f"{self.url}/elsewhere"}, b"")
        if does == "bomb":
            return await self._answer(client, 200, {"content-encoding": "gzip"}, bomb())
        if does in ANSWERS:
            return await self._answer(client, *ANSWERS[does])
        answer = await self._forward(client, head, body)
        if does == "lose the answer":
            return False
        client[1].write(answer[: len(answer) - 5 if does == "cut the answer" else None])
        await client[1].drain()
        return does != "cut the answer"

    def _fault(self, line: str) -> dict[str, Any]:
        for n, fault in enumerate(self.faults):
            if fault["on"] in line:
                self._seen[n] += 1
                skip = fault.get("skip", 0)
                if skip < self._seen[n] <= skip + fault.get("times", 1):
                    return fault
        return {}

    async def _forward(self, client: Streams, head: str, body: bytes) -> bytes:
        """Sends a request to the relay, and returns its answer. Closes the connection to the relay when the client does."""
        to = urlsplit(self.relay)
        reader, writer = await asyncio.open_connection(to.hostname, to.port)
        line, rest = head.split("\r\n", 1)
        kept = [one for one in rest.split("\r\n") if one and not one.lower().startswith(("connection:", "upgrade:", "http2-"))]
        writer.write("\r\n".join([line, *kept, "connection: close\r\n\r\n"]).encode() + body)
        answer, left = asyncio.ensure_future(reader.read()), asyncio.ensure_future(_leaves(client))
        try:
            await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                left.result()
                raise ConnectionResetError
            return answer.result().replace(b"connection: close\r\n", b"")
        finally:
            answer.cancel()
            left.cancel()
            # Two tasks cannot read from the client at the same time.
            await asyncio.wait((answer, left))
            writer.close()

    async def _answer(self, client: Streams, status: int, headers: dict[str, str], body: bytes) -> bool:
        lines = [f"{name}: {value}" for name, value in {**headers, "content-length": str(len(body))}.items()]
        if status == 204:
            lines.pop()
        client[1].write("\r\n".join([f"HTTP/1.1 {status} X", *lines, "\r\n"]).encode() + body)
        await client[1].drain()
        return True

    async def _write_forever(self, client: Streams, head: bytes, part: bytes, pause: float) -> None:
        client[1].write(head)
        while True:
            client[1].write(part)
            await client[1].drain()
            await asyncio.sleep(pause)


async def _leaves(client: Streams) -> None:
    """Waits until the client closes its connection. No client sends a request before the answer to the last one."""
    if await client[0].read(1):
        raise AssertionError("the client sent a request before the answer to the last one")
