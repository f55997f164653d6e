"""The worker: pulls, runs handlers, extends their leases and settles."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import threading
import traceback
from collections.abc import Awaitable, Iterator
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
AFTER_OUTAGE = 1.0
LOOK_EVERY = 0.1


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


async def run_worker(
    lisa: AsyncLisa, pull: Pull, handler: Handler, concurrency: int, lease: Duration, stop: Event | None
) -> None:
    """Handles messages until a stop."""
    stopping = asyncio.Event()
    stopped = asyncio.ensure_future(_stopped(stopping, stop))
    running: set[asyncio.Task[None]] = set()
    try:
        with _signals(stopping):
            while not stopped.done():
                if len(running) == concurrency:
                    await asyncio.wait({*running, stopped}, return_when=asyncio.FIRST_COMPLETED)
                    continue
                pulling = asyncio.ensure_future(pull(min(concurrency - len(running), MAX_PULL)))
                try:
                    await asyncio.wait({pulling, stopped}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    # The gateway hands a message back if the connection closes before its answer.
                    pulling.cancel()
                try:
                    deliveries = await pulling
                except asyncio.CancelledError:
                    break
                except LisaError as error:
                    if not error.retryable:
                        raise
                    log.warning("cannot pull; retrying: %s", error)
                    await asyncio.wait({stopped}, timeout=AFTER_OUTAGE)
                    continue
                for delivery in deliveries:
                    task = asyncio.create_task(_handle(lisa, delivery, handler, lease))
                    running.add(task)
                    task.add_done_callback(running.discard)
            await asyncio.gather(*running)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            for task in running:
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
    finally:
        stopped.cancel()


async def _handle(lisa: AsyncLisa, delivery: AsyncDelivery, handler: Handler, lease: Duration) -> None:
    """Handles a delivery. Raises nothing, unless it is cancelled."""
    handling = asyncio.ensure_future(_call(handler, delivery))
    lost = asyncio.ensure_future(_extend_until_lost(delivery, lease))
    try:
        await asyncio.wait({handling, lost}, return_when=asyncio.FIRST_COMPLETED)
        if not handling.done():
            await _cancel(handling)
            return
    except asyncio.CancelledError:
        await _cancel(handling)
        if not delivery.settled:
            with contextlib.suppress(LisaError):
                await lisa.settle(delivery, Defer(after=timedelta(0)))
        raise
    finally:
        lost.cancel()
    outcome = _outcome_of(handling, delivery)
    if not delivery.settled:
        await _settle(lisa, delivery, outcome)


async def _call(handler: Handler, delivery: AsyncDelivery) -> Outcome | None:
    result: Any = handler(delivery)
    # A callable object does not show whether it is async.
    while inspect.isawaitable(result):
        result = await result
    return cast("Outcome | None", result)


async def _cancel(handling: asyncio.Future[Outcome | None]) -> None:
    """Cancels a handler, and waits for its end, so that it does not run next to the following one."""
    handling.cancel()
    await asyncio.wait({handling})
    if not handling.cancelled():
        # It is read, so asyncio does not log it.
        handling.exception()


def _outcome_of(handling: asyncio.Future[Outcome | None], delivery: AsyncDelivery) -> Outcome:
    """Returns the outcome of a handler. An exception or an invalid outcome is a failed attempt."""
    try:
        outcome = handling.result()
        if outcome is None:
            return Ack()
        if not isinstance(outcome, (Ack, Retry, Defer, Reject)):
            raise TypeError(f"the handler returned {outcome!r}; allowed are None, Ack, Retry, Defer and Reject")
        outcome_body(outcome)
        return outcome
    except (Exception, asyncio.CancelledError) as error:
        log.warning("attempt %s of %s failed", delivery.attempt, delivery.id, exc_info=True)
        return Retry(error="".join(traceback.format_exception_only(type(error), error)).strip())


async def _settle(lisa: AsyncLisa, delivery: AsyncDelivery, outcome: Outcome) -> None:
    try:
        await lisa.settle(delivery, outcome)
    except Stale as error:
        if not error.maybe_settled:
            log.warning("lease of %s was lost; another worker may have it", delivery.id)
    except Invalid as error:
        log.warning("the outcome %r of %s is wrong: %s", outcome, delivery.id, error)
        if outcome != (failed := Retry(error=f"the handler returned a wrong outcome: {error}")):
            await _settle(lisa, delivery, failed)
    except Exception as error:
        log.error("cannot settle %s; it is delivered again after its lease: %s", delivery.id, error)


async def _extend_until_lost(delivery: AsyncDelivery, lease: Duration) -> None:
    """Extends the lease of a delivery whose handler runs. Returns when the lease was lost."""
    while True:
        await asyncio.sleep(seconds("lease", lease) / 3)
        if delivery.settled:
            continue
        try:
            await delivery.extend(lease)
        except Stale:
            if not delivery.settled:
                log.warning("lease of %s was lost; another worker may have it", delivery.id)
                return
        except Exception as error:
            # It says nothing about the handler, which goes on.
            log.warning("cannot extend the lease of %s: %s", delivery.id, error)


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
