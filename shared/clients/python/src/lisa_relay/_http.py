"""The HTTP policy of both clients: a time limit for each try, bounded responses, and no proxy that sees tokens.

All failures of the transport are a `TransportError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore
import httpx

from ._errors import TransportError
from ._flows import Reply

PIECE = 65_536


def open_client(options: dict[str, Any]) -> httpx.Client:
    """Opens a client whose calls end at their `time_limit`."""
    client = httpx.Client(**_with_proxy_policy(options))
    # httpx limits each read and write, so a server that sends single bytes could hold a call forever. It has no option
    # for a network backend.
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.HTTPTransport):
            transport._pool._network_backend = _Backend(transport._pool._network_backend)
    return client


def open_async_client(options: dict[str, Any]) -> httpx.AsyncClient:
    """Opens a client for asyncio."""
    return httpx.AsyncClient(**_with_proxy_policy(options))


def _with_proxy_policy(options: dict[str, Any]) -> dict[str, Any]:
    """Restricts a proxy from the environment to `https` requests, which it cannot read."""
    if options.keys() & {"proxy", "proxies", "mounts", "trust_env", "transport"}:
        return options
    return {**options, "mounts": {"http://": None}}


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raises failures of the transport as a `TransportError`."""
    try:
        yield
    except (asyncio.TimeoutError, httpx.TimeoutException) as error:
        text = f"no complete answer{_source(error)} within the time limit: {type(error).__name__}"
        raise TransportError(text) from error
    except (httpx.RequestError, httpx.StreamError, OSError) as error:
        raise TransportError(f"no answer{_source(error)}: {type(error).__name__}: {error}") from error


def _source(error: Exception) -> str:
    """Returns the server and the request that an error is about, if it knows them."""
    try:
        request: httpx.Request = error.request  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return ""
    return f" from {request.url.netloc.decode()} to {request.method} {request.url.path}"


class Body:
    """The body of an answer, which is read up to a limit."""

    def __init__(self, reply: httpx.Response, limit: int) -> None:
        self._reply, self._limit, self._content = reply, limit, bytearray()
        # No encoding was accepted. A few bytes of one can decode to gigabytes.
        if reply.headers.get("content-encoding", "identity").lower() != "identity":
            raise TransportError("not an answer from Lisa: it is compressed")

    def add(self, part: bytes) -> None:
        """Adds a part."""
        self._content += part
        if len(self._content) > self._limit:
            raise TransportError(f"not an answer from Lisa: it is longer than {self._limit} bytes")

    def end(self) -> Reply:
        """Returns the complete answer."""
        return Reply(self._reply.status_code, self._reply.headers, bytes(self._content))


class _Local(threading.local):
    ends_at = math.inf


_call = _Local()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limits the time of a call in this thread."""
    _call.ends_at = time.monotonic() + seconds
    try:
        yield
    finally:
        _call.ends_at = math.inf


def _left(timeout: float | None) -> float:
    left = _call.ends_at - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout
    return min(left, math.inf if timeout is None else timeout)


class _Backend(httpcore.NetworkBackend):
    """Connections whose operations end at the time limit of the call."""

    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_tcp(host, port, _left(timeout), local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_unix_socket(path, _left(timeout), socket_options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # In pieces: the time limit of a write starts again whenever the server takes some bytes.
        for at in range(0, len(buffer), PIECE):
            self._inner.write(buffer[at : at + PIECE], _left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
