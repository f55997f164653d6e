"""The clients `Lisa` and `AsyncLisa`, which have the same methods, and the deliveries that they pull."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union, cast

import httpx

from . import _flows as flows
from . import _types as types
from ._errors import LisaError, TransportError
from ._types import (
    Ack,
    Cancelled,
    Defer,
    DeliveryFields,
    Duration,
    Ended,
    Instant,
    Message,
    NewMessage,
    Outcome,
    Payload,
    Reject,
    Retry,
    SendOptions,
    Sent,
)
from ._work import Event, run_worker, seconds

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")
Token = Union[str, Path, Callable[[], str], None]

DEV = "http://127.0.0.1:7812"
MINUTE = timedelta(minutes=1)
LONG_POLL = timedelta(seconds=20)


class _Client:
    """The configuration of a client, and the calls without their transport."""

    def __init__(
        self,
        url: str = DEV,
        *,
        gateway: str | None = None,
        token: Token = None,
        timeout: float = 10,
        tries: int = 5,
        **http: Any,
    ) -> None:
        """Creates a client. Connections are opened when they are needed.

        `url` is that of the producer, and by default that of `lisa-manager dev`. `gateway` is that of the gateway, if
        it is another. `token` is the bearer token, the path of its file, or a function that returns it; the last two
        are read for each request. `timeout` is in seconds, for one try. `tries` limits how often a request is sent.
        Further arguments are those of `httpx.Client`.
        """
        if tries < 1:
            raise ValueError(f"tries: {tries} is less than 1")
        self._urls = (url.rstrip("/"), (gateway or url).rstrip("/"))
        self._token, self._timeout, self._tries, self._options = token, timeout, tries, http
        self._open()

    def _open(self) -> None:
        raise NotImplementedError

    def _request(self, request: flows.Request) -> dict[str, Any]:
        headers: dict[str, Any] = dict(request.headers)
        token = self._token
        if token is not None:
            value = token.read_text() if isinstance(token, Path) else token if isinstance(token, str) else token()
            headers["authorization"] = f"Bearer {value.strip()}"
        return {
            "method": request.method,
            "url": self._urls[request.to_gateway] + request.path,
            "headers": headers,
            "content": request.body,
            "timeout": httpx.Timeout(self._timeout, read=self._timeout + request.wait),
        }

    def _cancel(self, topic: str, message_id: str, key: str | None) -> flows.Flow[Cancelled]:
        request = flows.message_request("DELETE", topic, message_id, key)
        return types.read(Cancelled, (yield from flows.exchange(request, self._tries)))

    def _get(self, topic: str, message_id: str, key: str | None) -> flows.Flow[Message]:
        request = flows.message_request("GET", topic, message_id, key)
        return types.read(Message, (yield from flows.exchange(request, self._tries)))

    def _reschedule(
        self, topic: str, message_id: str, key: str | None, due: dict[str, Duration | Instant | None]
    ) -> flows.Flow[Sent]:
        request = flows.message_request("PATCH", topic, message_id, key, types.given(due))
        return types.read(Sent, (yield from flows.exchange(request, self._tries)))

    def _pull(
        self, kind: type[T], topic: str, group: str, options: dict[str, Any], wait: Duration | None
    ) -> flows.Flow[list[T]]:
        where = flows.path("topics", topic, "groups", group, "pull")
        # The server waits at most 30 s.
        longest = min(seconds(wait), 30.0) if isinstance(wait, timedelta) else 30.0 if wait else 0.0
        request = flows.with_json("POST", where, types.given({**options, "wait": wait}), True, longest)
        body = yield from flows.exchange(request, self._tries)
        return [types.read(kind, one, topic=topic, group=group, _lisa=self) for one in body["deliveries"]]


class Lisa(_Client):
    """Sends, changes and pulls messages. Threads can share it."""

    def _open(self) -> None:
        self._http = httpx.Client(**self._options)

    def _run(self, flow: flows.Flow[T]) -> T:
        answer: flows.Reply | TransportError | None = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            answer = None
            if not isinstance(step, flows.Request):
                time.sleep(step)
                continue
            try:
                reply = self._http.request(**self._request(step))
                answer = flows.Reply(reply.status_code, reply.headers, reply.content)
            except httpx.TransportError as error:
                answer = _no_answer(error)

    def send(self, topic: str, payload: Payload, **options: Unpack[SendOptions]) -> Sent:
        """Sends a message. A failed try is repeated with the same id, so the message is stored once."""
        return self._run(flows.send(topic, payload, options, self._tries))

    def send_many(self, topic: str, messages: Iterable[NewMessage]) -> list[Sent | LisaError]:
        """Sends messages in batches. Returns a result for each, in order: its error, if it was not accepted."""
        return self._run(flows.send_many(topic, messages, self._tries))

    def get(self, topic: str, id: str, *, key: str | None = None) -> Message:
        """Returns a stored message. Raises `NotFound` if there is none, or if it has ended."""
        return self._run(self._get(topic, id, key))

    def cancel(self, topic: str, id: str, *, key: str | None = None) -> Cancelled:
        """Cancels a message. Raises `Conflict` if it is ready, in flight or in garbage."""
        return self._run(self._cancel(topic, id, key))

    def reschedule(
        self,
        topic: str,
        id: str,
        *,
        delay: Duration | None = None,
        deliver_at: Instant | None = None,
        key: str | None = None,
    ) -> Sent:
        """Reschedules a message. Raises `Conflict` if it is ready, in flight or in garbage."""
        return self._run(self._reschedule(topic, id, key, {"delay": delay, "deliver_at": deliver_at}))

    def pull(
        self,
        topic: str,
        group: str = "default",
        *,
        max: int = 1,
        wait: Duration | None = None,
        lease: Duration | None = None,
        consumer: str | None = None,
    ) -> list[Delivery]:
        """Pulls up to `max` messages. Waits for the first one, up to `wait` (30 s at most)."""
        options = {"max": max, "lease": lease, "consumer": consumer}
        return self._run(self._pull(Delivery, topic, group, options, wait))

    def settle(self, delivery: DeliveryFields | str, outcome: Outcome) -> Ended:
        """Settles a delivery, or the delivery with this token. Raises `Stale` if its lease was lost."""
        return self._run(flows.settle(delivery, outcome, self._tries))

    def extend(self, delivery: DeliveryFields | str, lease: Duration | None = None) -> Ended:
        """Replaces the lease of a delivery with a new one that starts now. Raises `Stale` if it was lost."""
        return self._run(flows.extend(delivery, lease, self._tries))

    def settle_many(self, items: Iterable[tuple[DeliveryFields | str, Outcome]]) -> list[Ended | LisaError]:
        """Settles deliveries in batches. Returns a result for each, in order: its error, if it was not settled."""
        return self._run(flows.settle_many(items, self._tries))

    def work(
        self,
        topic: str,
        handler: Callable[[Delivery], Outcome | None],
        group: str = "default",
        *,
        concurrency: int = 1,
        lease: timedelta = MINUTE,
        wait: timedelta = LONG_POLL,
        consumer: str | None = None,
        stop: Event | None = None,
    ) -> None:
        """Pulls messages and handles them in threads, until `stop` is set or the process gets SIGINT or SIGTERM.

        The message is acknowledged when the handler returns, and retried when it raises an exception. It can also
        return `Retry`, `Defer` or `Reject`, or settle the delivery itself. Leases are extended while handlers run. At
        a stop, waits for the running handlers. Raises errors that a retry cannot fix, such as `Unauthorized`.
        """

        async def main() -> None:
            loop = asyncio.get_running_loop()
            threads = ThreadPoolExecutor(concurrency, thread_name_prefix=f"lisa-{topic}")

            async def handle(delivery: AsyncDelivery) -> Outcome | None:
                same = Delivery(**{**vars(delivery), "_lisa": self})
                return await loop.run_in_executor(threads, handler, same)

            url, gateway = self._urls
            options = {"token": self._token, "timeout": self._timeout, "tries": self._tries, **self._options}
            async with AsyncLisa(url, gateway=gateway, **options) as lisa:
                try:
                    await lisa.work(
                        topic,
                        handle,
                        group,
                        concurrency=concurrency,
                        lease=lease,
                        wait=wait,
                        consumer=consumer,
                        stop=stop,
                    )
                finally:
                    threads.shutdown()

        asyncio.run(main())

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


class AsyncLisa(_Client):
    """Sends, changes and pulls messages, for asyncio. Its methods are those of `Lisa`."""

    def _open(self) -> None:
        self._http = httpx.AsyncClient(**self._options)

    async def _run(self, flow: flows.Flow[T]) -> T:
        answer: flows.Reply | TransportError | None = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            answer = None
            if not isinstance(step, flows.Request):
                await asyncio.sleep(step)
                continue
            try:
                reply = await self._http.request(**self._request(step))
                answer = flows.Reply(reply.status_code, reply.headers, reply.content)
            except httpx.TransportError as error:
                answer = _no_answer(error)

    async def send(self, topic: str, payload: Payload, **options: Unpack[SendOptions]) -> Sent:
        """Sends a message. A failed try is repeated with the same id, so the message is stored once."""
        return await self._run(flows.send(topic, payload, options, self._tries))

    async def send_many(self, topic: str, messages: Iterable[NewMessage]) -> list[Sent | LisaError]:
        """Sends messages in batches. Returns a result for each, in order: its error, if it was not accepted."""
        return await self._run(flows.send_many(topic, messages, self._tries))

    async def get(self, topic: str, id: str, *, key: str | None = None) -> Message:
        """Returns a stored message. Raises `NotFound` if there is none, or if it has ended."""
        return await self._run(self._get(topic, id, key))

    async def cancel(self, topic: str, id: str, *, key: str | None = None) -> Cancelled:
        """Cancels a message. Raises `Conflict` if it is ready, in flight or in garbage."""
        return await self._run(self._cancel(topic, id, key))

    async def reschedule(
        self,
        topic: str,
        id: str,
        *,
        delay: Duration | None = None,
        deliver_at: Instant | None = None,
        key: str | None = None,
    ) -> Sent:
        """Reschedules a message. Raises `Conflict` if it is ready, in flight or in garbage."""
        return await self._run(self._reschedule(topic, id, key, {"delay": delay, "deliver_at": deliver_at}))

    async def pull(
        self,
        topic: str,
        group: str = "default",
        *,
        max: int = 1,
        wait: Duration | None = None,
        lease: Duration | None = None,
        consumer: str | None = None,
    ) -> list[AsyncDelivery]:
        """Pulls up to `max` messages. Waits for the first one, up to `wait` (30 s at most)."""
        options = {"max": max, "lease": lease, "consumer": consumer}
        return await self._run(self._pull(AsyncDelivery, topic, group, options, wait))

    async def settle(self, delivery: DeliveryFields | str, outcome: Outcome) -> Ended:
        """Settles a delivery, or the delivery with this token. Raises `Stale` if its lease was lost."""
        return await self._run(flows.settle(delivery, outcome, self._tries))

    async def extend(self, delivery: DeliveryFields | str, lease: Duration | None = None) -> Ended:
        """Replaces the lease of a delivery with a new one that starts now. Raises `Stale` if it was lost."""
        return await self._run(flows.extend(delivery, lease, self._tries))

    async def settle_many(self, items: Iterable[tuple[DeliveryFields | str, Outcome]]) -> list[Ended | LisaError]:
        """Settles deliveries in batches. Returns a result for each, in order: its error, if it was not settled."""
        return await self._run(flows.settle_many(items, self._tries))

    async def work(
        self,
        topic: str,
        handler: Callable[[AsyncDelivery], Awaitable[Outcome | None]],
        group: str = "default",
        *,
        concurrency: int = 1,
        lease: timedelta = MINUTE,
        wait: timedelta = LONG_POLL,
        consumer: str | None = None,
        stop: Event | None = None,
    ) -> None:
        """Pulls messages and handles them in tasks, until `stop` is set or the process gets SIGINT or SIGTERM.

        It does what `Lisa.work` does. A handler that has lost its lease is cancelled, because another worker may have
        the message. If the call itself is cancelled, it cancels its handlers and defers their messages, so that they
        are delivered again at once.
        """

        async def pull(free: int) -> list[AsyncDelivery]:
            return await self.pull(topic, group, max=free, wait=wait, lease=lease, consumer=consumer)

        await run_worker(self, pull, handler, concurrency, lease, stop)

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()


@dataclass
class Delivery(DeliveryFields):
    """A delivery that was pulled, with a lease."""

    _lisa: Lisa = field(default=cast(Lisa, None), repr=False)

    def ack(self) -> Ended:
        """Acknowledges it: the work is done."""
        return self._lisa.settle(self, Ack())

    def retry(self, after: Duration | None = None, error: str | None = None) -> Ended:
        """Reports a failed attempt."""
        return self._lisa.settle(self, Retry(after, error))

    def defer(self, after: Duration | None = None, until: Instant | None = None) -> Ended:
        """Delivers it later, without counting an attempt."""
        return self._lisa.settle(self, Defer(after, until))

    def reject(self, error: str | None = None) -> Ended:
        """Moves it to garbage (dead letters)."""
        return self._lisa.settle(self, Reject(error))

    def extend(self, lease: Duration | None = None) -> Ended:
        """Replaces its lease with a new one that starts now."""
        return self._lisa.extend(self, lease)


@dataclass
class AsyncDelivery(DeliveryFields):
    """A delivery that was pulled, with a lease, for asyncio."""

    _lisa: AsyncLisa = field(default=cast(AsyncLisa, None), repr=False)

    async def ack(self) -> Ended:
        """Acknowledges it: the work is done."""
        return await self._lisa.settle(self, Ack())

    async def retry(self, after: Duration | None = None, error: str | None = None) -> Ended:
        """Reports a failed attempt."""
        return await self._lisa.settle(self, Retry(after, error))

    async def defer(self, after: Duration | None = None, until: Instant | None = None) -> Ended:
        """Delivers it later, without counting an attempt."""
        return await self._lisa.settle(self, Defer(after, until))

    async def reject(self, error: str | None = None) -> Ended:
        """Moves it to garbage (dead letters)."""
        return await self._lisa.settle(self, Reject(error))

    async def extend(self, lease: Duration | None = None) -> Ended:
        """Replaces its lease with a new one that starts now."""
        return await self._lisa.extend(self, lease)


def _no_answer(error: httpx.TransportError) -> TransportError:
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        # Another try is of no use.
        raise error
    return TransportError(f"{type(error).__name__}: {error}")
