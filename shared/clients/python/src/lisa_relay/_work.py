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
from collections.abc import Awaitable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Optional, Union, cast

from ._errors import Invalid, LisaError, Stale
from ._types import Ack, Defer, Duration, Outcome, Reject, Retry, outcome_body, seconds

if TYPE_CHECKING:
    from ._client import AsyncDelivery, AsyncLisa

Event = Union[threading.Event, asyncio.Event]
Handler = Callable[["AsyncDelivery"], Awaitable[Optional[Outcome]]]
Pull = Callable[[int], Awaitable["list[AsyncDelivery]"]]

log = logging.getLogger("lisa_relay")

MAX_PULL = 200
MAX_PULLS = 2
AFTER_OUTAGE = 1.0
LOOK_EVERY = 0.1
# The time after a stop for which outcomes are repeated.
GRACE = 30.0


def check_arguments(
    topic: Any,
    handler: Any,
    group: Any,
    concurrency: Any,
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


@dataclass(eq=False)
class _Running:
    """A delivery whose handler runs."""

    delivery: AsyncDelivery
    extended_at: float
    handling: asyncio.Task[None] | None = None
    has_begun: bool = False
    is_lost: bool = False


class Worker:
    """Pulls as many messages as there are free handlers.

    Sends outcomes in batches while the next messages are pulled and handled: up to `concurrency` outcomes may be in
    flight.
    """

    def __init__(self, lisa: AsyncLisa, pull: Pull, handler: Handler, concurrency: int, lease: Duration) -> None:
        self._lisa, self._pull, self._handler, self._concurrency, self._lease = lisa, pull, handler, concurrency, lease
        self._running: set[_Running] = set()
        # asyncio itself keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        # The messages that each pull asks for.
        self._pulls: dict[asyncio.Task[None], int] = {}
        self._settling = 0
        self._is_cancelled = False
        self._repeat_until = math.inf
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    async def run(self, stop: Event | None) -> None:
        """Handles messages until a stop."""
        stopping = asyncio.Event()
        stopped = asyncio.ensure_future(_stopped(stopping, stop))
        stopped.add_done_callback(lambda _: self._changed.set())
        extending = asyncio.ensure_future(self._extend_leases())
        try:
            with _signals(stopping):
                while not stopped.done() and self._failure is None:
                    wanted = self._wanted()
                    if wanted:
                        pulling = asyncio.create_task(self._pull_once(wanted, stopped))
                        self._pulls[pulling] = wanted
                        pulling.add_done_callback(self._pulled)
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

    def _wanted(self) -> int:
        """Returns the number of messages to pull now.

        The first pull is for half of the free handlers, so that the gateway can fill a second one while the messages of
        the first are handled. The second is only for at least half of all handlers: otherwise, the first one will
        return soon.
        """
        free = self._concurrency - len(self._running) - sum(self._pulls.values())
        if len(self._pulls) == MAX_PULLS or self._settling >= self._concurrency:
            return 0
        if not self._pulls:
            return min((free + 1) // 2, MAX_PULL)
        return min(free, MAX_PULL) if free * 2 >= self._concurrency else 0

    async def _change(self) -> None:
        """Waits until something ends. All that ends in the same turn of the event loop counts as one change."""
        self._changed.clear()
        await self._changed.wait()
        await asyncio.sleep(0)

    async def _end(self) -> None:
        """Ends the pulls, and waits for all handlers and outcomes."""
        self._repeat_until = asyncio.get_running_loop().time() + GRACE
        for pulling in self._pulls:
            # The gateway hands a message back if the connection closes before its answer.
            pulling.cancel()
        while self._pulls or self._tasks:
            await asyncio.wait({*self._pulls, *self._tasks})

    async def _pull_once(self, count: int, stopped: asyncio.Future[None]) -> None:
        try:
            deliveries = await self._pull(count)
        except LisaError as error:
            if not error.retryable:
                raise
            log.warning("cannot pull; retrying: %s", error)
            await asyncio.wait({stopped}, timeout=AFTER_OUTAGE)
            return
        now = asyncio.get_running_loop().time()
        for delivery in deliveries:
            running = _Running(delivery, now)
            self._running.add(running)
            running.handling = self._start(self._handle(running))

    def _pulled(self, pulling: asyncio.Task[None]) -> None:
        del self._pulls[pulling]
        self._changed.set()
        if not pulling.cancelled() and isinstance(error := pulling.exception(), Exception):
            self._failure = self._failure or error

    def _start(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _handle(self, running: _Running) -> None:
        """Runs a handler, and settles its delivery."""
        delivery = running.delivery
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
                log.warning("attempt %s of %s failed", delivery.attempt, delivery.id, exc_info=True)
                outcome = Retry(error="".join(traceback.format_exception_only(type(error), error)).strip())
        finally:
            self._running.discard(running)
            self._settling += 1
            self._changed.set()
        if outcome is not None and not running.is_lost and not delivery.settled:
            await self._settle(running, outcome)
        self._settling -= 1
        self._changed.set()

    async def _settle(self, running: _Running, outcome: Outcome) -> None:
        """Settles. Repeats it until the lease ends, since the work is done; after a stop, for half a minute."""
        loop, delivery = asyncio.get_running_loop(), running.delivery
        lease_ends = running.extended_at + seconds("lease", self._lease)
        is_wrong = False
        while True:
            try:
                await self._lisa.settle(delivery, outcome)
            except Stale as error:
                if not error.maybe_settled:
                    log.warning("lease of %s was lost; another worker may have it", delivery.id)
            except Invalid as error:
                log.warning("the outcome %r of %s is wrong: %s", outcome, delivery.id, error)
                if not is_wrong:
                    is_wrong, outcome = True, Retry(error=f"the handler returned a wrong outcome: {error}")
                    continue
            except Exception as error:
                may_repeat = loop.time() < min(lease_ends, self._repeat_until)
                if may_repeat and isinstance(error, LisaError) and error.retryable:
                    log.warning("cannot settle %s; retrying: %s", delivery.id, error)
                    await asyncio.sleep(AFTER_OUTAGE)
                    continue
                log.error("cannot settle %s; it is delivered again after its lease: %s", delivery.id, error)
            return

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
                log.warning("lease of %s was lost; another worker may have it", delivery.id)
                running.is_lost = True
                if running.handling is not None:
                    running.handling.cancel()
        except Exception as error:
            # It says nothing about the handler, which goes on.
            log.warning("cannot extend the lease of %s: %s", delivery.id, error)


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


async def _stopped(stopping: asyncio.Event, stop: Event | None) -> None:
    """Waits until one of the two is set. A thread may set `stop`, so it is polled."""
    while not (stopping.is_set() or (stop is not None and stop.is_set())):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopping.wait(), LOOK_EVERY)


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
