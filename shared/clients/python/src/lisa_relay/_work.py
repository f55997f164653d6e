"""The worker: pulls, runs handlers, extends their leases and settles."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Awaitable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from ._errors import LisaError, Stale
from ._types import Ack, Defer, Outcome, Reject, Retry

if TYPE_CHECKING:
    from ._client import AsyncDelivery, AsyncLisa

Event = Union[threading.Event, asyncio.Event]
Handler = Callable[["AsyncDelivery"], Awaitable[Optional[Outcome]]]
Pull = Callable[[int], Awaitable["list[AsyncDelivery]"]]

log = logging.getLogger("lisa_relay")

MAX_PULL = 200
AFTER_OUTAGE = 1.0
LOOK_EVERY = 0.1


def seconds(duration: timedelta) -> float:
    """Returns a duration in seconds."""
    return duration.total_seconds()


async def run_worker(
    lisa: AsyncLisa, pull: Pull, handler: Handler, concurrency: int, lease: timedelta, stop: Event | None
) -> None:
    """Handles messages until a stop."""
    if concurrency < 1:
        raise ValueError(f"concurrency: {concurrency} is less than 1")
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


async def _handle(lisa: AsyncLisa, delivery: AsyncDelivery, handler: Handler, lease: timedelta) -> None:
    """Handles a delivery. Raises nothing, unless it is cancelled."""
    task = asyncio.ensure_future(handler(delivery))
    try:
        while not (await asyncio.wait({task}, timeout=seconds(lease) / 3))[0]:
            if not await _keep(delivery, lease):
                task.cancel()
                return
        outcome = task.result()
        if outcome is None:
            outcome = Ack()
        if not isinstance(outcome, (Ack, Retry, Defer, Reject)):
            raise TypeError(f"the handler returned {outcome!r}; allowed are None, Ack, Retry, Defer and Reject")
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        if not delivery.settled:
            with contextlib.suppress(LisaError):
                await lisa.settle(delivery, Defer(after=timedelta(0)))
        raise
    except Exception as error:
        log.warning("attempt %s of %s failed", delivery.attempt, delivery.id, exc_info=True)
        outcome = Retry(error=f"{type(error).__name__}: {error}")
    if delivery.settled:
        return
    try:
        await lisa.settle(delivery, outcome)
    except Stale as error:
        if not error.maybe_settled:
            log.warning("lease of %s was lost; another worker may have it", delivery.id)
    except LisaError as error:
        log.error("cannot settle %s; it is delivered again after its lease: %s", delivery.id, error)


async def _keep(delivery: AsyncDelivery, lease: timedelta) -> bool:
    """Extends the lease of a delivery whose handler is running. Returns false if it was lost."""
    if not delivery.settled:
        try:
            await delivery.extend(lease)
        except Stale:
            if not delivery.settled:
                log.warning("lease of %s was lost; another worker may have it", delivery.id)
                return False
        except LisaError as error:
            log.warning("cannot extend the lease of %s: %s", delivery.id, error)
    return True


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
