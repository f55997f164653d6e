"""Tests of what the client does on the wire: what it sends where, and what it accepts."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import pytest
from support import HOUR, HTML, URL, WAIT, serve

import lisa_relay as lr
from lisa_relay import AsyncLisa, Lisa


def get(url: str, **options: Any) -> None:
    """Looks up a message with each client. Both raise the same."""
    with Lisa(url, **options) as lisa, pytest.raises(lr.LisaError) as first:
        lisa.get("t", "x")

    async def main() -> None:
        async with AsyncLisa(url, **options) as lisa:
            await lisa.get("t", "x")

    with pytest.raises(lr.LisaError) as second:
        asyncio.run(main())
    assert type(first.value) is type(second.value)
    raise second.value


@contextmanager
def raw(serve_one: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server of bytes. It ends each connection when the client has gone."""
    listener = socket.create_server(("127.0.0.1", 0))

    def connection(peer: socket.socket) -> None:
        with peer:
            try:
                peer.recv(65_536)
                serve_one(peer)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=connection, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("start", [b"", HEAD, HEAD + b"content-length: 9999\r\n\r\n"])
def test_the_time_limit_bounds_the_whole_call(start: bytes) -> None:
    def dribble(peer: socket.socket) -> None:
        peer.sendall(start or b"H")
        for byte in HEAD[1:] + b"x-a: " if not start else b"x-a: ":
            peer.sendall(bytes([byte]))
            time.sleep(0.05)
        # Each byte comes long before a time limit of a read.
        while True:
            peer.sendall(b"x")
            time.sleep(0.05)

    with raw(dribble) as url, pytest.raises(lr.TransportError, match=r"time limit"):
        get(url, timeout=1, tries=1)


def test_the_time_limit_bounds_a_request_that_the_server_reads_slowly() -> None:
    size, read = 32 * 1024 * 1024, 0

    def read_slowly(peer: socket.socket) -> None:
        nonlocal read
        while part := peer.recv(65_536):
            read += len(part)
            time.sleep(0.02)

    with raw(read_slowly) as url, Lisa(url, timeout=1, tries=1) as lisa:
        with pytest.raises(lr.TransportError, match="time limit"):
            lisa.send("t", bytes(size))
        # The server takes ten seconds for all of it.
        assert read < size / 2


def test_an_answer_is_bounded() -> None:
    def endless(peer: socket.socket) -> None:
        peer.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        while True:
            peer.sendall(b"100000\r\n" + bytes(0x100000) + b"\r\n")

    with raw(endless) as url, Lisa(url, tries=1) as lisa, pytest.raises(lr.TransportError, match="longer than"):
        lisa.settle("token", lr.Ack())


def test_a_compressed_answer_is_not_unpacked() -> None:
    accepted = []

    def answer(_: int, handler: Any, __: bytes) -> Any:
        accepted.append(handler.headers["accept-encoding"])
        return 200, {"content-encoding": "gzip"}, gzip.compress(bytes(256 * 1024 * 1024), 1)

    with serve(answer) as server, pytest.raises(lr.TransportError, match="compressed"):
        get(server.url, tries=1)
    assert accepted == ["identity", "identity"]


def test_any_other_answer_is_a_transport_error() -> None:
    answers = [HTML, (200, {}, b"{}"), (200, {}, b"null"), (200, {}, b"[" * 100_000), (204, {}, b"")]
    for one in answers:
        with serve(lambda *_, one=one: one) as server, pytest.raises(lr.TransportError, match="not an answer"):
            get(server.url, tries=1)


def test_a_redirect_is_not_followed() -> None:
    with serve(lambda *_: HTML) as other:
        elsewhere = {"location": f"{other.url}/v1/topics/t/messages"}
        for status in (301, 302, 303, 307, 308):
            with serve(lambda *_, status=status: (status, elsewhere, b"")) as server:
                with pytest.raises(lr.Problem, match="redirect") as error:
                    get(server.url, token="secret", follow_redirects=True)
                assert error.value.status == status and not error.value.retryable
        assert other.count == 0


def test_the_token_of_a_delivery_is_in_no_log(lisa: Lisa, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        lisa.send(topic, "x")
        delivery = lisa.pull(topic, wait=WAIT)[0]
        delivery.extend(HOUR)
        delivery.ack()
        with pytest.raises(lr.Stale) as error:
            delivery.ack()
    assert "deliveries:settle" in caplog.text and "deliveries:extend" in caplog.text
    assert delivery.token not in caplog.text and delivery.token not in str(error.value)


def test_a_proxy_of_the_environment_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serve(lambda *_: HTML) as proxy:
        for name in ("HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with pytest.raises(lr.NotFound):
            get(URL, token="secret")
        assert proxy.count == 0
        for asked in ({"trust_env": True}, {"proxy": proxy.url}):
            with pytest.raises(lr.TransportError):
                get(URL, tries=1, **asked)
        assert proxy.count == 4
