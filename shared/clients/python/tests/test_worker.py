"""Tests that a worker charges messages with nothing but the failures of their handlers."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Callable, cast
from uuid import uuid4

import pytest
from support import HTML, URL, Served, eventually, serve

import lisa_relay as lr
from lisa_relay import AsyncDelivery, AsyncLisa, Delivery, Lisa

ONCE = timedelta(seconds=1)


def plain(_: Any) -> None:
    pass


async def coroutine(_: Any) -> None:
    pass


@functools.wraps(coroutine)
def decorated(delivery: Any) -> Any:
    return coroutine(delivery)


class Both:
    """A handler that does not show whether it is async."""

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        self.handler = handler

    def __call__(self, delivery: Any) -> Any:
        return self.handler(delivery)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", None),
        ("topic", ""),
        ("group", 7),
        ("consumer", 7),
        ("concurrency", 0),
        ("concurrency", "4"),
        ("concurrency", 1.5),
        ("concurrency", True),
        ("max_per_key", 0),
        ("max_per_key", 201),
        ("max_per_key", 1.5),
        ("lease", 30),
        ("lease", None),
        ("lease", "30"),
        ("lease", "soon"),
        ("lease", timedelta(0)),
        ("lease", "-5s"),
        ("wait", 20),
        ("wait", "0s"),
        ("wait", timedelta(seconds=-1)),
        ("stop", True),
        ("handler", None),
        ("handler", coroutine),
        ("handler", functools.partial(coroutine)),
        ("handler", decorated),
    ],
)
def test_a_wrong_argument_is_raised_before_the_first_pull(name: str, value: Any) -> None:
    with serve(lambda *_: (200, {}, b'{"deliveries":[]}')) as server:
        arguments: dict[str, Any] = {"topic": "t", "handler": plain, name: value}
        with Lisa(server.url) as lisa, pytest.raises(ValueError, match=name):
            lisa.work(**arguments)

        async def main() -> None:
            async with AsyncLisa(server.url) as lisa:
                await lisa.work(**{**arguments, "handler": plain if name == "handler" else coroutine})

        with pytest.raises(ValueError, match=name):
            asyncio.run(main())
        assert server.count == 0


def test_all_wrong_arguments_are_raised_together() -> None:
    with Lisa(URL) as lisa, pytest.raises(ValueError, match=r"handler.*concurrency.*lease"):
        lisa.work("t", None, concurrency=0, lease="soon")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"url": "localhost:7812"}, {"gateway": "http://"}, {"timeout": "2s"}, {"tries": 0}])
def test_a_wrong_configuration_is_raised_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Lisa(**wrong)


@pytest.mark.parametrize("lease", ["1s 500ms", timedelta(seconds=2)])
def test_a_lease_is_extended_whether_it_is_a_text_or_a_timedelta(lisa: Lisa, topic: str, lease: Any) -> None:
    lisa.send(topic, "slow")
    stop, attempts = threading.Event(), []

    def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        first = delivery.lease_until
        # Longer than the lease: only an extended lease still holds then.
        eventually(lambda: datetime.now(timezone.utc) > first + timedelta(seconds=2), "the first lease is over")
        delivery.ack()
        stop.set()

    lisa.work(topic, handler, lease=lease, wait="20s", stop=stop)
    assert attempts == [1]


MISLEADING: list[Served] = [
    HTML,
    (200, {"content-encoding": "gzip"}, b"this is not gzip"),
    (200, {"content-type": "application/json"}, b"{}"),
    (200, {}, b"null"),
    (200, {}, b"[" * 100_000),
    (200, {}, b"\xff"),
    (500, {}, b"oops"),
    (503, {}, b'{"code": {}, "errors": 7}'),
]


def test_a_worker_survives_that_its_token_file_is_away(
    lisa: Lisa, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    id = lisa.send(topic, "x").id
    stop, attempts = threading.Event(), []

    def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        file.unlink()
        eventually(lambda: "cannot extend" in caplog.text, "an extension without a token")
        # As a program does that replaces the content.
        file.write_text("")
        caplog.clear()
        eventually(lambda: "cannot extend" in caplog.text, "an extension with an empty token")
        file.write_text("token")
        stop.set()

    def write() -> None:
        eventually(lambda: "cannot pull" in caplog.text, "a pull without a token")
        file.write_text("token")

    writer = threading.Thread(target=write)
    writer.start()
    with Lisa(URL, token=file, tries=1) as other:
        other.work(topic, handler, lease=timedelta(seconds=3), stop=stop)
    writer.join()
    assert attempts == [1]
    with pytest.raises(lr.NotFound) as error:
        lisa.get(topic, id)
    assert error.value.ended == "acked"


def stop_iteration(_: Delivery) -> None:
    next(iter([]))


def own_client_error(_: Delivery) -> None:
    raise lr.TransportError("no answer of another relay")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def leaves(_: Delivery) -> None:
    raise SystemExit(3)


def unprintable(_: Delivery) -> None:
    raise Unprintable


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (stop_iteration, "RuntimeError: the handler raised StopIteration"),
        (leaves, "RuntimeError: the handler raised SystemExit(3)"),
        (own_client_error, "TransportError: no answer of another relay"),
        (unprintable, "Unprintable"),
        (lambda _: 7, "TypeError: the handler returned 7"),
        (lambda _: lr.Retry(after=cast(Any, 5)), "TypeError: after: 5 is not a duration"),
        (lambda _: lr.Defer(after=timedelta(-1)), "ValueError: after: -86400.0 s is negative"),
        (lambda _: lr.Retry(after="soon"), "the handler returned a wrong outcome: 422 invalid"),
        (lambda _: lr.Defer(), "the handler returned a wrong outcome: 422 invalid"),
    ],
)
def test_whatever_a_handler_does_wrong_is_a_failed_attempt(
    lisa: Lisa, handler: Any, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    id = lisa.send("jobs", "x", id=uuid4().hex).id
    stop, attempts = threading.Event(), []

    def counting(delivery: Delivery) -> Any:
        if delivery.id == id:
            attempts.append(delivery.attempt)
        return handler(delivery)

    worker = threading.Thread(target=lambda: lisa.work("jobs", counting, stop=stop))
    worker.start()
    message = eventually(lambda: (found := lisa.get("jobs", id)).reason and found, "in garbage")
    stop.set()
    worker.join()
    assert error in message.error and attempts == [1, 2]
    assert f"{id} (jobs/default)" in caplog.text


def test_a_handler_that_cancels_itself_failed(topic: str) -> None:
    async def main() -> None:
        async with AsyncLisa(URL) as lisa:
            id = (await lisa.send("jobs", "x")).id
            stop = asyncio.Event()

            async def handler(delivery: AsyncDelivery) -> None:
                if delivery.is_last_attempt:
                    stop.set()
                raise asyncio.CancelledError

            await lisa.work("jobs", handler, stop=stop)
            message = await lisa.get("jobs", id)
            assert message.reason and "CancelledError" in str(message.error)

    asyncio.run(main())


@pytest.mark.parametrize("inner", [plain, coroutine])
def test_a_callable_object_may_be_async_or_not(lisa: Lisa, topic: str, inner: Any) -> None:
    for is_async in (False, True):
        lisa.send(topic, "x")
        stop = threading.Event()
        attempts: list[int] = []

        def handler(delivery: Any, stop: Any = stop, attempts: Any = attempts) -> Any:
            attempts.append(delivery.attempt)
            stop.set()
            return inner(delivery)

        async def main(stop: Any = stop, handler: Any = handler) -> None:
            async with AsyncLisa(URL) as other:
                await other.work(topic, Both(handler), stop=stop)

        if is_async:
            asyncio.run(main())
        else:
            lisa.work(topic, Both(handler), stop=stop)
        assert attempts == [1] and lisa.pull(topic, wait="0s") == []


def test_a_cancelled_handler_ends_before_the_next_begins(topic: str) -> None:
    async def main() -> None:
        async with AsyncLisa(URL) as lisa:
            await lisa.send_many(topic, [{"payload": n} for n in range(2)])
            stop, running, most = asyncio.Event(), 0, 0

            async def handler(delivery: AsyncDelivery) -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                try:
                    if delivery.json() != 0:
                        stop.set()
                        return
                    # Another worker settles it.
                    await lisa.settle(delivery.token, lr.Ack())
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        # Cleaning up takes a moment, in which the next message could be pulled.
                        await lisa.pull(topic, "other", wait="500ms")
                finally:
                    running -= 1

            await lisa.send(topic, 0)
            await lisa.work(topic, handler, lease=ONCE, stop=stop)
            assert most == 1

    asyncio.run(main())


def run_of(count: int) -> dict[str, Any]:
    """Returns an answer with messages of one ordering key, whose tokens are their ids."""
    at = "2026-01-01T00:00:00Z"
    fields = {"attempt": 1, "max_attempts": 2, "due_at": at, "lease_until": at, "key": "k", "payload": ""}
    return {"deliveries": [{"id": str(n), "token": str(n), "headers": {}, **fields} for n in range(count)]}


@pytest.mark.parametrize("lost_by", ["extend", "settle"])
def test_those_behind_a_lost_lease_are_handed_back(lost_by: str, caplog: pytest.LogCaptureFixture) -> None:
    pulls: list[bytes] = []
    settled: dict[str, Any] = {}
    # A message that waits, or one that was handled.
    lost = "1" if lost_by == "extend" else "0"

    def answer(_: int, handler: Any, body: bytes) -> Served:
        if handler.path.endswith("/pull"):
            pulls.append(body)
            time.sleep(0.05)
            return 200, {}, json.dumps(run_of(4) if len(pulls) == 1 else run_of(0)).encode()
        items = json.loads(body)
        is_lost = [handler.path.endswith(lost_by) and one["token"] == lost for one in items]
        if handler.path.endswith("settle"):
            settled.update((one.pop("token"), one) for one in items)
        stale = {"error": {"status": 409, "code": "stale"}}
        return 200, {}, json.dumps([stale if one else {"outcome": "acked"} for one in is_lost]).encode()

    stop, handled = threading.Event(), []

    def handle(delivery: Delivery) -> None:
        handled.append(delivery.id)
        if (lost_by == "settle") == (delivery.id == "1"):
            eventually(lambda: f"lease of {lost}" in caplog.text, "the lease is lost")

    def watch() -> None:
        eventually(lambda: len(settled) == (3 if lost_by == "extend" else 4), "all are settled")
        stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with serve(answer) as server, Lisa(server.url) as lisa:
        lisa.work("t", handle, concurrency=3, max_per_key=4, lease="300ms", stop=stop)
    watcher.join()
    back = {"defer": {"after": "0ms"}}
    if lost_by == "extend":
        assert handled == ["0"] and settled == {"0": {"ack": True}, "2": back, "3": back}
    else:
        assert handled == ["0", "1"] and settled == {"0": {"ack": True}, "1": {"ack": True}, "2": back, "3": back}
    first = json.loads(pulls[0])
    assert first == {"max": 12, "max_per_key": 4, "max_keys": 3, "lease": "300ms", "wait": "20000ms"}


def test_a_cancelled_worker_hands_back_those_that_wait() -> None:
    settled: dict[str, Any] = {}
    begun = threading.Event()

    def answer(count: int, handler: Any, body: bytes) -> Served:
        if handler.path.endswith("/pull"):
            return 200, {}, json.dumps(run_of(3 if count == 1 else 0)).encode()
        settled.update((one.pop("token"), one) for one in json.loads(body))
        return 200, {}, json.dumps([{"outcome": "deferred"}] * len(json.loads(body))).encode()

    async def handle(_: AsyncDelivery) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        with serve(answer) as server:
            async with AsyncLisa(server.url) as lisa:
                working = asyncio.create_task(lisa.work("t", handle, max_per_key=3))
                await asyncio.to_thread(begun.wait)
                working.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await working

    asyncio.run(main())
    assert settled == {id: {"defer": {"after": "0ms"}} for id in ("0", "1", "2")}
