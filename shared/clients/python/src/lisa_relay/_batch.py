"""Batching of single calls: those made while requests are in flight are sent together in the next one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Callable, Generic, TypeVar

from ._errors import LisaError
from ._flows import Answer, Item, conclude, fitting, note_settled, settle_item
from ._types import DeliveryFields, Ended, Outcome

T = TypeVar("T")

MAX_IN_FLIGHT = 2


class AsyncBatcher(Generic[T]):
    """Sends the items of single calls in batches. The first is sent at once. A repeated item does not delay others."""

    def __init__(self, attempt: Callable[[list[Item]], Awaitable[Answer[T]]], tries: int) -> None:
        self._attempt, self._tries = attempt, tries
        self._waiting: deque[tuple[Item, asyncio.Future[T | LisaError]]] = deque()
        self._in_flight = 0
        self._scheduled: asyncio.AbstractEventLoop | None = None
        # asyncio itself keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """True if nothing waits or is in flight."""
        return not self._waiting and not self._tasks

    @property
    def is_about_to_send(self) -> bool:
        """True if the code that runs next sends what waits."""
        return bool(self._waiting) and self._in_flight < MAX_IN_FLIGHT

    async def add(self, item: Item) -> T:
        """Sends an item. Raises its error."""
        future: asyncio.Future[T | LisaError] = asyncio.get_running_loop().create_future()
        self._push(item, future)
        result = await future
        if isinstance(result, LisaError):
            raise result
        return result

    def _push(self, item: Item, future: asyncio.Future[T | LisaError]) -> None:
        self._waiting.append((item, future))
        loop = asyncio.get_running_loop()
        # A closed loop no longer flushes.
        if self._scheduled is not loop:
            # Waits for the code that runs now, which may add more.
            self._scheduled = loop
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = None
        while self._waiting and self._in_flight < MAX_IN_FLIGHT:
            count = fitting(item for item, _ in self._waiting)
            calls = [self._waiting.popleft() for _ in range(count)]
            # Nobody waits for the call of a task that was cancelled.
            calls = [(item, future) for item, future in calls if not future.done()]
            if calls:
                self._in_flight += 1
                attempt = self._attempt([item for item, _ in calls])
                task = asyncio.create_task(self._send(calls, attempt))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _send(
        self, calls: list[tuple[Item, asyncio.Future[T | LisaError]]], attempt: Awaitable[Answer[T]]
    ) -> None:
        try:
            try:
                answer = await attempt
            finally:
                self._in_flight -= 1
                if self._waiting:
                    self._flush()
            results, wait = conclude([item for item, _ in calls], answer, self._tries)
            for (_, future), result in zip(calls, results):
                if result is not None and not future.done():
                    future.set_result(result)
            again = [call for call, result in zip(calls, results) if result is None]
            if again:
                await asyncio.sleep(wait)
                for call in again:
                    self._push(*call)
        except Exception as error:
            for _, future in calls:
                if not future.done():
                    future.set_exception(error)
        except BaseException:
            # The loop ends, so that nobody would answer them.
            for _, future in calls:
                future.cancel()
            raise


async def settle_by(settles: AsyncBatcher[Ended], delivery: DeliveryFields | str, outcome: Outcome) -> Ended:
    """Settles a delivery by a batcher, and remembers that it is settled."""
    try:
        ended = await settles.add(settle_item((delivery, outcome)))
    except LisaError as error:
        note_settled(delivery, error)
        raise
    note_settled(delivery, ended)
    return ended


@dataclass(eq=False)
class _Call(Generic[T]):
    item: Item
    is_answered: bool = False
    result: T | LisaError | None = None
    wait: float = 0
    changed: Event = field(default_factory=lambda: Event())


class ThreadBatcher(Generic[T]):
    """Does the same for calls of threads. The threads that wait also make the requests."""

    def __init__(self, attempt: Callable[[list[Item]], Answer[T]], tries: int) -> None:
        self._attempt, self._tries = attempt, tries
        self._lock = Lock()
        self._waiting: deque[_Call[T]] = deque()
        self._in_flight = 0

    @property
    def is_idle(self) -> bool:
        """True if nothing waits or is in flight."""
        return not self._waiting and self._in_flight == 0

    def add(self, item: Item) -> T:
        """Sends an item. Raises its error."""
        call: _Call[T] = _Call(item)
        while True:
            with self._lock:
                call.is_answered = False
                self._waiting.append(call)
            try:
                self._wait_for(call)
            except BaseException:
                # Such as KeyboardInterrupt: nobody waits for this call any more.
                with self._lock:
                    if call in self._waiting:
                        self._waiting.remove(call)
                    self._wake_next()
                raise
            if call.result is not None:
                break
            time.sleep(call.wait)
        if isinstance(call.result, LisaError):
            raise call.result
        return call.result

    def _wait_for(self, call: _Call[T]) -> None:
        while not call.is_answered:
            with self._lock:
                calls = self._take() if not call.is_answered else []
            if calls:
                self._send(calls, call)
            elif not call.is_answered:
                call.changed.wait()
                call.changed.clear()

    def _take(self) -> list[_Call[T]]:
        if not self._waiting or self._in_flight == MAX_IN_FLIGHT:
            return []
        calls = [self._waiting.popleft() for _ in range(fitting(call.item for call in self._waiting))]
        self._in_flight += 1
        self._wake_next()
        return calls

    def _wake_next(self) -> None:
        if self._waiting and self._in_flight < MAX_IN_FLIGHT:
            self._waiting[0].changed.set()

    def _send(self, calls: list[_Call[T]], own: _Call[T]) -> None:
        try:
            answer = self._attempt([call.item for call in calls])
            results, wait = conclude([call.item for call in calls], answer, self._tries)
        except BaseException:
            # An error of this thread only, such as KeyboardInterrupt: the other threads send their items again.
            with self._lock:
                self._in_flight -= 1
                for call in reversed(calls):
                    if call is not own:
                        self._waiting.appendleft(call)
                        call.changed.set()
                self._wake_next()
            raise
        with self._lock:
            self._in_flight -= 1
            for call, result in zip(calls, results):
                call.result, call.wait, call.is_answered = result, wait, True
                call.changed.set()
            self._wake_next()
