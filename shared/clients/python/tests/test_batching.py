"""Tests of automatic batching: nothing is lost, sent twice or returned to another caller."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import eventually, forward, serve

import lisa_relay as lr
from lisa_relay import AsyncLisa, Lisa, _batch
from lisa_relay._flows import Item

COUNT = 300


class Relay:
    """A server in front of the relay that records the sizes of batches, and fails two of them in different ways."""

    def __init__(self, part: str) -> None:
        self.part, self.sizes, self.lock = part, list[int](), threading.Lock()
        self.hold = threading.Event()
        self.hold.set()

    def answer(self, _: int, handler: Any, body: bytes) -> Any:
        if self.part not in handler.path:
            return forward(handler, body)
        with self.lock:
            self.sizes.append(len(json.loads(body)))
            nth = len(self.sizes)
        self.hold.wait(60)
        if nth == 3:
            # Refused, without having been carried out.
            return 503, {"retry-after": "0"}, b'{"status":503,"code":"unavailable"}'
        result = forward(handler, body)
        # Carried out, but the answer is lost.
        return None if nth == 5 else result


def test_an_item_that_is_repeated_holds_up_no_other(topic: str) -> None:
    others = 0

    def result(item: Any) -> Any:
        nonlocal others
        if item["id"] == "last" and others < 20:
            return {"id": "last", "error": {"status": 429, "code": "full"}}
        others += 1
        return {"id": item["id"], "outcome": "ready"}

    def answer(_: int, handler: Any, body: bytes) -> Any:
        return 200, {}, json.dumps(list(map(result, json.loads(body)))).encode()

    async def main(url: str) -> None:
        # The last try is 24 s after the first one.
        async with AsyncLisa(url, tries=8) as lisa:
            last = asyncio.ensure_future(lisa.send(topic, "x", id="last"))
            for _ in range(20):
                await lisa.send(topic, "x")
            await last

    with serve(answer) as server:
        asyncio.run(main(server.url))


def test_a_call_that_is_cancelled_while_it_waits_is_not_sent(topic: str) -> None:
    relay = Relay("messages:batch")
    relay.hold.clear()

    async def main(url: str) -> None:
        async with AsyncLisa(url) as lisa:
            sends = [asyncio.ensure_future(lisa.send(topic, n, id=f"{topic}-{n}", delay="1h")) for n in range(2)]
            await asyncio.sleep(0.2)
            third = asyncio.ensure_future(lisa.send(topic, 2, id=f"{topic}-2", delay="1h"))
            fourth = asyncio.ensure_future(lisa.send(topic, 3, id=f"{topic}-3", delay="1h"))
            await asyncio.sleep(0)
            third.cancel()
            relay.hold.set()
            await asyncio.gather(*sends, fourth)
            with pytest.raises(lr.NotFound):
                await lisa.get(topic, f"{topic}-2")

    with serve(relay.answer) as proxy:
        asyncio.run(main(proxy.url))


def test_a_thread_that_is_interrupted_leaves_others_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(BaseException):
        pass

    go = threading.Event()
    sizes = []

    def attempt(items: list[Any]) -> Any:
        sizes.append(len(items))
        go.wait(60)
        if threading.current_thread().name == "interrupted":
            raise Interrupted
        return [item.json for item in items]

    monkeypatch.setattr(_batch, "MAX_IN_FLIGHT", 1)
    batcher: _batch.ThreadBatcher[bytes] = _batch.ThreadBatcher(attempt, 1)
    raised = []

    def interrupted() -> None:
        try:
            batcher.add(Item({"id": "own"}))
        except Interrupted as error:
            raised.append(error)

    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(batcher.add, Item({"id": "first"}))
        eventually(lambda: sizes, "a request in flight")
        thread = threading.Thread(target=interrupted, name="interrupted")
        thread.start()
        eventually(lambda: len(batcher._waiting) == 1, "it is the next to send")
        others = [threads.submit(batcher.add, Item({"id": n})) for n in range(8)]
        eventually(lambda: len(batcher._waiting) == 9, "the others wait")
        go.set()
        assert [other.result(60) for other in others] == [b'{"id":%d}' % n for n in range(8)]
        assert first.result(60) == b'{"id":"first"}'
    thread.join()
    assert raised and batcher.is_idle and sizes[:2] == [1, 9]


def test_a_thread_that_is_interrupted_while_it_waits_wakes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(BaseException):
        pass

    class Interrupting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            go.wait(60)
            raise Interrupted

    go, sizes = threading.Event(), list[int]()

    def attempt(items: list[Any]) -> Any:
        sizes.append(len(items))
        go.wait(60)
        return [item.json for item in items]

    monkeypatch.setattr(_batch, "MAX_IN_FLIGHT", 1)
    batcher: _batch.ThreadBatcher[bytes] = _batch.ThreadBatcher(attempt, 1)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(batcher.add, Item({"id": "first"}))
        eventually(lambda: sizes, "a request in flight")
        with monkeypatch.context() as patched:
            patched.setattr(_batch, "Event", Interrupting)
            interrupted = threads.submit(batcher.add, Item({"id": "interrupted"}))
            eventually(lambda: len(batcher._waiting) == 1, "it waits")
        others = [threads.submit(batcher.add, Item({"id": n})) for n in range(2)]
        eventually(lambda: len(batcher._waiting) == 3, "the others wait")
        go.set()
        assert [other.result(60) for other in others] == [b'{"id":0}', b'{"id":1}'] and first.result(60)
        assert isinstance(interrupted.exception(60), Interrupted)
    assert batcher.is_idle and sum(sizes) == 3


def test_a_value_that_is_not_json_fails_only_its_own_send(lisa: Lisa, topic: str) -> None:
    for options in ({"retry": {"factor": float("nan")}}, {"priority": float("inf")}):
        with pytest.raises(ValueError):
            lisa.send(topic, "x", **options)
