"""Tests of automatic batching: nothing is lost, sent twice or returned to another caller."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from support import URL, eventually, forward, serve

import lisa_relay as lr
from lisa_relay import AsyncDelivery, AsyncLisa, Delivery, Lisa, _batch
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


def test_sends_of_threads_share_requests_and_each_gets_its_own_receipt(lisa: Lisa, topic: str) -> None:
    relay = Relay("messages:batch")
    with serve(relay.answer) as proxy, Lisa(proxy.url) as other, ThreadPoolExecutor(50) as threads:

        def send(n: int) -> Any:
            try:
                return other.send(topic, n, id=f"{topic}-{n}", delay="soon" if n % 50 == 7 else "1h")
            except lr.LisaError as error:
                return error

        results = list(threads.map(send, range(COUNT)))
    check_receipts(lisa, topic, results)
    assert sum(relay.sizes) >= COUNT and len(relay.sizes) < COUNT / 3, relay.sizes


def test_sends_of_tasks_share_requests_and_each_gets_its_own_receipt(lisa: Lisa, topic: str) -> None:
    relay = Relay("messages:batch")

    async def main(url: str) -> list[Any]:
        async with AsyncLisa(url) as other:
            gate = asyncio.Semaphore(50)

            async def send(n: int) -> Any:
                async with gate:
                    return await other.send(topic, n, id=f"{topic}-{n}", delay="soon" if n % 50 == 7 else "1h")

            return await asyncio.gather(*map(send, range(COUNT)), return_exceptions=True)

    with serve(relay.answer) as proxy:
        results = asyncio.run(main(proxy.url))
    check_receipts(lisa, topic, results)
    assert sum(relay.sizes) >= COUNT and len(relay.sizes) < COUNT / 3, relay.sizes


def check_receipts(lisa: Lisa, topic: str, results: list[Any]) -> None:
    for n, result in enumerate(results):
        if n % 50 == 7:
            assert isinstance(result, lr.Invalid) and result.id == f"{topic}-{n}", result
        else:
            assert isinstance(result, lr.Sent) and result.id == f"{topic}-{n}", result
            assert lisa.get(topic, result.id).json() == n


def test_a_refusal_of_a_whole_request_is_the_error_of_each_call_and_ends_a_batch(topic: str) -> None:
    with serve(lambda *_: (401, {}, b'{"status":401,"code":"unauthorized"}')) as server, Lisa(server.url) as lisa:
        results = lisa.send_many(topic, [{"payload": n} for n in range(2000)])
        assert server.count == 1 and {type(result) for result in results} == {lr.Unauthorized}
        assert len({id(result) for result in results}) == len({result.id for result in results}) == 2000


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


@pytest.mark.parametrize("concurrency", [1, 7, 50, 250])
def test_a_worker_settles_in_batches_and_runs_no_more_handlers_than_it_may(
    lisa: Lisa, topic: str, concurrency: int
) -> None:
    count = min(COUNT, 20 * concurrency)
    lisa.send_many(topic, [{"payload": n, "id": f"{topic}-{n}"} for n in range(count)])
    relay, seen = Relay("deliveries:settle"), Counter[int]()

    async def main(url: str) -> int:
        async with AsyncLisa(URL, gateway=url) as other:
            stop, running, most = asyncio.Event(), 0, 0

            async def handler(delivery: AsyncDelivery) -> Any:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.001 * (delivery.json() % 3))
                running -= 1
                seen[delivery.json()] += 1
                if len(seen) == count:
                    stop.set()
                return lr.Retry(after=timedelta(0)) if delivery.json() == 5 and delivery.attempt == 1 else None

            await other.work(topic, handler, concurrency=concurrency, stop=stop)
            return most

    with serve(relay.answer) as proxy:
        most = asyncio.run(main(proxy.url))
    assert most <= concurrency
    assert {n: times for n, times in seen.items() if times != 1 and n != 5} == {} and len(seen) == count
    if concurrency > 1:
        assert len(relay.sizes) < count / 2, relay.sizes
    for n in range(count):
        if n != 5:
            with pytest.raises(lr.NotFound) as ended:
                lisa.get(topic, f"{topic}-{n}")
            assert ended.value.ended == "acked"


def test_leases_are_extended_together(lisa: Lisa, topic: str) -> None:
    lisa.send_many(topic, [{"payload": n} for n in range(40)])
    relay, stop, done = Relay("deliveries:extend"), threading.Event(), threading.Event()
    relay.sizes += [0] * 10
    attempts = Counter[int]()

    def handler(delivery: Delivery) -> None:
        attempts[delivery.json()] = delivery.attempt
        if sum(attempts.values()) == 40:
            eventually(lambda: sum(relay.sizes) >= 120, "three extensions of each")
            stop.set()
            done.set()
        done.wait(60)

    with serve(relay.answer) as proxy, Lisa(URL, gateway=proxy.url) as other:
        other.work(topic, handler, concurrency=40, lease="3s", stop=stop)
    assert set(attempts.values()) == {1} and max(relay.sizes) == 40, relay.sizes


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


def test_the_error_of_a_send_has_the_id_of_its_message(lisa: Lisa, topic: str) -> None:
    lisa.send(topic, "x", delay="1h")
    with pytest.raises(lr.LisaError) as error:
        lisa.send(topic, "x", id="mine", replace="gone")
    assert error.value.id == "mine"


def test_an_outcome_is_repeated_until_the_lease_ends(lisa: Lisa, topic: str) -> None:
    id = lisa.send(topic, "x").id
    stop, attempts, failures = threading.Event(), list[int](), 0

    def answer(_: int, handler: Any, body: bytes) -> Any:
        nonlocal failures
        if handler.path.endswith(":settle") and failures < 3:
            failures += 1
            return None
        return forward(handler, body)

    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        stop.set()

    with serve(answer) as proxy, Lisa(URL, gateway=proxy.url, tries=1) as other:
        other.work(topic, handle, stop=stop)
    with pytest.raises(lr.NotFound) as ended:
        lisa.get(topic, id)
    assert ended.value.ended == "acked" and attempts == [1]
