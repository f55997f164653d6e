"""Tests of what the client does on the wire: what it sends where, and what it accepts."""

from __future__ import annotations

import asyncio
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
