"""The worker: pulls, runs handlers, extends their leases and settles."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import signal
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Callable, Optional, Union, cast

from ._batch import AsyncBatcher, settle_by
from ._delivery import AsyncCalls, AsyncDelivery
from ._errors import Invalid, LisaError, Stale
from ._flows import Answer, Item, SettledAndPulled, runs_of
from ._types import (
    MAX_PULL,
    Ack,
    Defer,
    DeliveryFields,
    Duration,
    Ended,
    Outcome,
    Reject,
    Retry,
    check_count,
    outcome_body,
    seconds,
)

Event = Union[threading.Event, asyncio.Event]
Handler = Callable[[AsyncDelivery], Awaitable[Optional[Outcome]]]
Size = dict[str, int]
"""The options of a pull that limit its deliveries."""

log = logging.getLogger("lisa_relay")

MAX_PULLS = 2
# The messages that are worth a pull of their own: one request for 50 costs less than two for 25.
FEW = 50
AFTER_OUTAGE = 1.0
LOOK_EVERY = 0.1
# The time after a stop for which outcomes are repeated.
GRACE = 30.0


def check_arguments(
    topic: Any,
    handler: Any,
    group: Any,
    concurrency: Any,
    max_per_key: Any,
    lease: Any,
    wait: Any,
    consumer: Any,
    stop: Any,
    *,
    in_threads: bool,
) -> None:
    """Raises one error for all wrong arguments of `work`. Later, they would count as failed attempts of messages."""
    problems = [
        f"{name}: {value!r} is not a string, or is empty"
        for name, value in (("topic", topic), ("group", group), ("consumer", consumer))
        if not ((isinstance(value, str) and value) or (name == "consumer" and value is None))
    ]
    if not callable(handler):
        problems.append(f"handler: {handler!r} is not a function")
    elif in_threads and _is_async(handler):
        problems.append(f"handler: {handler!r} is an async function: use AsyncLisa")
    elif not in_threads and inspect.isroutine(handler) and not _is_async(handler):
        problems.append(f"handler: {handler!r} is not an async function: declare it with `async def`, or use Lisa")
    if type(concurrency) is not int or concurrency < 1:
        problems.append(f"concurrency: {concurrency!r} is not an integer of at least 1")
    try:
        check_count("max_per_key", max_per_key)
    except ValueError as error:
        problems.append(str(error))
    for name, value in (("lease", lease), ("wait", wait)):
        try:
            if seconds(name, value) <= 0:
                problems.append(f"{name}: {value!r} must be longer than zero")
        except (TypeError, ValueError) as error:
            problems.append(str(error))
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        problems.append(f"stop: {stop!r} is not an event")
    if problems:
        raise ValueError("; ".join(problems))


def _is_async(handler: Any) -> bool:
    # A decorator may wrap an async function in a plain one.
    plain = inspect.unwrap(handler)
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(type(plain).__call__)


@dataclass(frozen=True)
class WorkerCalls:
    """The requests of a worker, each of which is sent once."""

    pull: Callable[[Size, AsyncCalls], Awaitable[list[AsyncDelivery]]]
    settle: Callable[[list[Item]], Awaitable[Answer[Ended]]]
    settle_and_pull: Callable[[list[Item], Size, AsyncCalls], Awaitable[SettledAndPulled[AsyncDelivery] | LisaError]]
    extend: Callable[[DeliveryFields | str, Duration | None], Awaitable[Ended]]
    # The most tries of a settlement.
    tries: int


@dataclass(eq=False)
class _Running:
    """A delivery whose handler runs, or waits for those before it in its run."""

    delivery: AsyncDelivery
    extended_at: float
    run: _Run
    handling: asyncio.Task[None] | None = None
    has_begun: bool = False
    is_lost: bool = False


@dataclass(eq=False)
class _Run:
    """The messages of one ordering key in a pull, which are handled one after another, or one message without a key."""

    waiting: deque[_Running] = field(default_factory=deque)
    # True once a message of it was not acknowledged. Those behind it have to be delivered after it.
    is_broken: bool = False


class Worker:
    """Pulls a run of messages for each free handler.

    Sends outcomes in batches while the next messages are pulled and handled: as many outcomes as messages may be in
    flight. While messages are ready, a batch of outcomes is also a pull. It makes the calls of its deliveries.
    """

    def __init__(
        self,
        calls: WorkerCalls,
        handler: Handler,
        concurrency: int,
        max_per_key: int,
        lease: Duration,
        stop: Event | None,
    ) -> None:
        self._calls, self._handler, self._lease = calls, handler, lease
        self._concurrency, self._max_per_key = concurrency, max_per_key
        self._stop, self._stopping = stop, asyncio.Event()
        self._settles = AsyncBatcher(self._send, calls.tries)
        self._running: set[_Running] = set()
        # The runs, each of which has a handler.
        self._runs = 0
        # asyncio itself keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[Any]] = set()
        # The pulls that a stop ends.
        self._waiting: set[asyncio.Task[None]] = set()
        # All pulls, and the runs that they ask for.
        self._pulls = self._requested = 0
        # The outcomes that are not settled yet, and those of them in a request.
        self._settling = self._sending = 0
        # True if the last pull found so many messages that more are probably ready.
        self._are_ready = False
        # False once a request that also pulls was refused.
        self._may_settle_and_pull = True
        self._is_cancelled = False
        self._repeat_until = math.inf
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Handles messages until a stop."""
        stopped = asyncio.ensure_future(self._stopped())
        stopped.add_done_callback(lambda _: self._changed.set())
        extending = asyncio.ensure_future(self._extend_leases())
        try:
            with _signals(self._stopping):
                while not self._is_stopping and self._failure is None:
                    # Outcomes that are sent now are also a pull.
                    are_next = self._are_ready and self._settles.is_about_to_send
                    wanted = 0 if are_next else self._wanted(self._settling)
                    if wanted:
                        self._begin_pull(wanted)
                        pulling = asyncio.create_task(self._pull(wanted, stopped))
                        self._waiting.add(pulling)
                        pulling.add_done_callback(partial(self._pulled, wanted))
                    else:
                        await self._change()
                await self._end()
        except asyncio.CancelledError:
            self._is_cancelled = True
            for running in self._running:
                if running.handling is not None and running.has_begun:
                    running.handling.cancel()
            await self._end()
            raise
        finally:
            stopped.cancel()
            extending.cancel()
        if self._failure is not None:
            raise self._failure

    async def settle(self, delivery: DeliveryFields | str, outcome: Outcome) -> Ended:
        """Settles a delivery."""
        return await settle_by(self._settles, delivery, outcome)

    async def extend(self, delivery: DeliveryFields | str, lease: Duration | None = None) -> Ended:
        """Replaces the lease of a delivery."""
        return await self._calls.extend(delivery, lease)

    @property
    def _is_stopping(self) -> bool:
        return self._stopping.is_set() or (self._stop is not None and self._stop.is_set())

    async def _stopped(self) -> None:
        """Waits until a stop. A thread may set the event of the application, so it is polled."""
        while not self._is_stopping:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), LOOK_EVERY)

    def _wanted(self, outcomes: int) -> int:
        """Returns the number of runs to pull now, while this many outcomes are on their way.

        The first pull is for half of the free handlers, so that the gateway can fill a second one while the messages of
        the first are handled, but not for few. The second is only for at least half of all handlers: otherwise, the
        first one will return soon.
        """
        free = self._concurrency - self._runs - self._requested
        if self._pulls == MAX_PULLS or outcomes >= self._concurrency * self._max_per_key:
            return 0
        if not self._pulls:
            return min(max((free + 1) // 2, FEW), free, MAX_PULL)
        return min(free, MAX_PULL) if free * 2 >= self._concurrency else 0

    def _size(self, count: int) -> Size:
        """Returns the options of a pull of this many runs."""
        if self._max_per_key == 1:
            return {"max": count}
        most = min(count * self._max_per_key, MAX_PULL)
        return {"max": most, "max_per_key": self._max_per_key, "max_keys": count}

    async def _change(self) -> None:
        """Waits until something ends. All that ends in the same turn of the event loop counts as one change."""
        self._changed.clear()
        await self._changed.wait()
        await asyncio.sleep(0)

    async def _end(self) -> None:
        """Ends the pulls, and waits for all handlers and outcomes."""
        self._stopping.set()
        self._repeat_until = asyncio.get_running_loop().time() + GRACE
        for pulling in self._waiting:
            # The gateway hands a message back if the connection closes before its answer.
            pulling.cancel()
        while self._waiting or self._tasks:
            await asyncio.wait({*self._waiting, *self._tasks})

    async def _pull(self, count: int, stopped: asyncio.Future[None]) -> None:
        try:
            deliveries = await self._calls.pull(self._size(count), self)
        except LisaError as error:
            if not error.retryable:
                raise
            log.warning("cannot pull; retrying: %s", error)
            self._are_ready = False
            await asyncio.wait({stopped}, timeout=AFTER_OUTAGE)
            return
        self._handle_all(deliveries, count)

    def _pulled(self, count: int, pulling: asyncio.Task[None]) -> None:
        self._waiting.discard(pulling)
        self._end_pull(count)
        if not pulling.cancelled() and isinstance(error := pulling.exception(), Exception):
            self._failure = self._failure or error

    def _send(self, items: list[Item]) -> Awaitable[Answer[Ended]]:
        """Sends outcomes. While messages are ready, pulls in the same request."""
        may_pull = self._are_ready and self._may_settle_and_pull and not self._is_stopping
        count = self._wanted(self._sending) if may_pull else 0
        self._sending += len(items)
        if count:
            self._begin_pull(count)
        self._changed.set()
        return self._sent(items, count)

    async def _sent(self, items: list[Item], count: int) -> Answer[Ended]:
        try:
            answer = await (self._settle_and_pull(items, count) if count else self._calls.settle(items))
            if count and isinstance(answer, LisaError) and not answer.retryable:
                # It says nothing about the outcomes.
                log.warning("cannot settle and pull in one request: %s", answer)
                self._may_settle_and_pull = False
                answer = await self._calls.settle(items)
            # Those that are repeated later count for the next pull.
            if isinstance(answer, LisaError) or any(isinstance(one, LisaError) and one.retryable for one in answer):
                self._are_ready = False
            return answer
        finally:
            self._sending -= len(items)

    async def _settle_and_pull(self, items: list[Item], count: int) -> Answer[Ended]:
        sending = cast("asyncio.Task[Any]", asyncio.current_task())
        # The end of the worker waits for it.
        self._tasks.add(sending)
        try:
            answer = await self._calls.settle_and_pull(items, self._size(count), self)
            if isinstance(answer, SettledAndPulled):
                self._handle_all(answer.deliveries, count)
                return answer.results
            self._are_ready = False
            return answer
        finally:
            self._end_pull(count)
            self._tasks.discard(sending)

    def _begin_pull(self, count: int) -> None:
        self._pulls += 1
        self._requested += count

    def _end_pull(self, count: int) -> None:
        self._pulls -= 1
        self._requested -= count
        self._changed.set()

    def _handle_all(self, deliveries: list[AsyncDelivery], count: int) -> None:
        """Handles the messages of a pull of this many runs."""
        runs = runs_of(deliveries)
        self._are_ready = len(runs) * 2 >= count or len(deliveries) * 2 >= self._size(count)["max"]
        now = asyncio.get_running_loop().time()
        self._runs += len(runs)
        for one in runs:
            run = _Run()
            run.waiting.extend(_Running(delivery, now, run) for delivery in one)
            self._running.update(run.waiting)
            self._begin(run.waiting.popleft())

    def _begin(self, running: _Running) -> None:
        running.handling = self._start(self._handle(running))

    def _go_on(self, run: _Run) -> None:
        """Begins the next handler of a run, or ends the run: those that wait are delivered again, uncounted."""
        if run.waiting and not (run.is_broken or self._is_stopping or run.waiting[0].is_lost):
            self._begin(run.waiting.popleft())
            return
        self._runs -= 1
        for running in run.waiting:
            self._end_handler(running)
            self._start(self._settle(running, Defer(after=timedelta(0))))
        run.waiting.clear()

    def _start(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _handle(self, running: _Running) -> None:
        """Runs a handler, and settles its delivery. The next handler of the run does not wait for that."""
        delivery, run = running.delivery, running.run
        outcome: Outcome | None = None
        running.has_begun = True
        try:
            if self._is_cancelled:
                raise asyncio.CancelledError
            outcome = _checked(await _call(self._handler, delivery))
        except (Exception, asyncio.CancelledError) as error:
            if self._is_cancelled and isinstance(error, asyncio.CancelledError):
                outcome = Defer(after=timedelta(0))
            elif not running.is_lost:
                log.warning("attempt %s of %s failed", delivery.attempt, _name(delivery), exc_info=True)
                outcome = Retry(error="".join(traceback.format_exception_only(type(error), error)).strip())
        finally:
            is_acked = "acked" in delivery._ended if delivery.settled else isinstance(outcome, Ack)
            run.is_broken = run.is_broken or running.is_lost or not is_acked
            self._end_handler(running)
            self._go_on(run)
        await self._settle(running, outcome)

    def _end_handler(self, running: _Running) -> None:
        self._running.discard(running)
        self._settling += 1
        self._changed.set()

    async def _settle(self, running: _Running, outcome: Outcome | None) -> None:
        if outcome is not None and not running.is_lost and not running.delivery.settled:
            has_ended = await self._try_to_settle(running, outcome)
            running.run.is_broken = running.run.is_broken or not has_ended
        self._settling -= 1
        self._changed.set()

    async def _try_to_settle(self, running: _Running, outcome: Outcome) -> bool:
        """Settles. Repeats it until the lease ends, since the work is done; after a stop, for half a minute.

        Returns true if the message may have ended. Otherwise, it is delivered again.
        """
        loop, delivery = asyncio.get_running_loop(), running.delivery
        lease_ends = running.extended_at + seconds("lease", self._lease)
        is_wrong = False
        while True:
            try:
                return (await self.settle(delivery, outcome)).due_at is None
            except Stale as error:
                if not error.maybe_settled:
                    log.warning("lease of %s was lost; another worker may have it", _name(delivery))
                return error.maybe_settled
            except Invalid as error:
                log.warning("the outcome %r of %s is wrong: %s", outcome, _name(delivery), error)
                if not is_wrong:
                    is_wrong, outcome = True, Retry(error=f"the handler returned a wrong outcome: {error}")
                    continue
            except Exception as error:
                may_repeat = loop.time() < min(lease_ends, self._repeat_until)
                if may_repeat and isinstance(error, LisaError) and error.retryable:
                    log.warning("cannot settle %s; retrying: %s", _name(delivery), error)
                    await asyncio.sleep(AFTER_OUTAGE)
                    continue
                log.error("cannot settle %s; it is delivered again after its lease: %s", _name(delivery), error)
            return False

    async def _extend_leases(self) -> None:
        """Extends each lease after a third of it. Those due at the same time share a request."""
        loop, lease = asyncio.get_running_loop(), seconds("lease", self._lease)
        while True:
            await asyncio.sleep(max(lease / 6, 0.01))
            for running in self._running:
                if loop.time() >= running.extended_at + lease / 3 and not (running.is_lost or running.delivery.settled):
                    running.extended_at = loop.time()
                    self._start(self._extend(running))

    async def _extend(self, running: _Running) -> None:
        delivery = running.delivery
        try:
            await delivery.extend(self._lease)
        except Stale:
            if running in self._running and not delivery.settled:
                log.warning("lease of %s was lost; another worker may have it", _name(delivery))
                running.is_lost = True
                if running.handling is not None:
                    running.handling.cancel()
        except Exception as error:
            # It says nothing about the handler, which goes on.
            log.warning("cannot extend the lease of %s: %s", _name(delivery), error)


def _name(delivery: AsyncDelivery) -> str:
    """Returns a delivery as the log names it. One program may have workers of several topics."""
    return f"{delivery.id} ({delivery.topic}/{delivery.group})"


async def _call(handler: Handler, delivery: AsyncDelivery) -> Outcome | None:
    try:
        result: Any = handler(delivery)
        # A callable object does not show whether it is async.
        while inspect.isawaitable(result):
            result = await result
    except SystemExit as error:
        # It would end the worker, and with it the handlers of other messages.
        raise RuntimeError(f"the handler raised {error!r}") from error
    return cast("Outcome | None", result)


def _checked(outcome: Outcome | None) -> Outcome:
    """Returns the outcome of a handler. Raises an error if it is not a valid one."""
    if outcome is None:
        return Ack()
    if not isinstance(outcome, (Ack, Retry, Defer, Reject)):
        raise TypeError(f"the handler returned {outcome!r}; must be None, Ack, Retry, Defer or Reject")
    outcome_body(outcome)
    return outcome


@contextlib.contextmanager
def _signals(stopping: asyncio.Event) -> Iterator[None]:
    """Sets the event at the first SIGINT or SIGTERM, where that is possible: in the main thread, and not on Windows."""
    loop = asyncio.get_running_loop()
    previous: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while previous:
            number, handler = previous.popitem()
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def stop() -> None:
        stopping.set()
        # A second signal has its usual effect.
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop)
            previous[number] = handler
    try:
        yield
    finally:
        restore()
