"""The driver of the contract suite: see shared/clients/README.md.

With the argument `threads`, it uses `Lisa`, else `AsyncLisa`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Callable

import lisa_relay as lr

# The results that are shown with all fields.
WHOLE = (
    lr.MessagePage,
    lr.CancelledKey,
    lr.RescheduledKey,
    lr.Requeued,
    lr.Topic,
    lr.TopicDetails,
    lr.TopicList,
    lr.TopicPaused,
    lr.GroupPaused,
    lr.GroupRetired,
    lr.TopicRemoval,
    lr.Token,
    lr.TokenPage,
    lr.SchedulePage,
    lr.SchedulePaused,
    lr.ScheduleRun,
)
OUTCOMES: dict[str, Callable[..., lr.Outcome]] = {"retry": lr.Retry, "defer": lr.Defer, "reject": lr.Reject}


def outcome(body: dict[str, Any]) -> lr.Outcome:
    [(verb, options)] = body.items()
    return lr.Ack() if verb == "ack" else OUTCOMES[verb](**options)


def shown(result: Any) -> Any:
    """Returns a result of the client as JSON of the contract has it."""
    if isinstance(result, list):
        return [shown(one) for one in result]
    if isinstance(result, (ValueError, TypeError)):
        return {"error": {"kind": "argument", "message": str(result)}}
    if isinstance(result, lr.LisaError):
        error: dict[str, Any] = {
            "kind": "transport",
            "message": str(result),
            "id": result.id,
            "retryable": result.retryable,
        }
        if isinstance(result, lr.Problem):
            error |= {"kind": "problem", "status": result.status, "code": result.code, "ended": result.ended}
        if isinstance(result, lr.Stale):
            error["maybe_settled"] = result.maybe_settled
        return {"error": error}
    if isinstance(result, Exception):
        raise result
    fields = ("id", "outcome", "state", "attempt")
    if isinstance(result, lr.Schedule):
        return {**asdict(result), "next_times": [round(at.timestamp() * 1000) for at in result.next_times]}
    if isinstance(result, lr.Backfilled):
        return {**asdict(result), "next": result.next and round(result.next.timestamp() * 1000)}
    if isinstance(result, WHOLE):
        return asdict(result)
    answer = {name: getattr(result, name) for name in fields if hasattr(result, name)}
    if isinstance(result, (lr.Message, lr.Delivery, lr.AsyncDelivery)):
        answer["payload"] = result.payload.decode()
    return answer


class Handlers:
    """The handlers of one worker."""

    def __init__(self, do: list[dict[str, Any]], sleep: int = 0, together: int = 1, of: Any = None) -> None:
        self.do, self.sleep, self.together, self.of = do, sleep / 1000, together, of or {}
        self.handled: list[dict[str, Any]] = []
        self.begun = self.running = self.most = 0
        self.lock = threading.Lock()

    def begin(self) -> None:
        with self.lock:
            self.begun += 1
            self.running += 1
            self.most = max(self.most, self.running)

    def step(self, delivery: Any) -> dict[str, Any]:
        do = self.of.get(delivery.text(), self.do)
        step: dict[str, Any] = do[min(delivery.attempt, len(do)) - 1]
        return step

    def result(self, step: dict[str, Any]) -> Any:
        if "fail" in step:
            raise RuntimeError(step["fail"])
        return "no outcome" if "wrong" in step else None if "settle" in step else outcome(step)

    def end(self, delivery: Any) -> int:
        with self.lock:
            self.running -= 1
            self.handled.append({"payload": delivery.text(), "attempt": delivery.attempt})
            return len(self.handled)


def handler_of_threads(
    lisa: Any, handlers: Handlers, stop: threading.Event, stop_after: int
) -> Callable[[lr.Delivery], Any]:
    def handle(delivery: lr.Delivery) -> Any:
        handlers.begin()
        try:
            while handlers.begun < handlers.together:
                time.sleep(0.01)
            time.sleep(handlers.sleep)
            step = handlers.step(delivery)
            if "settle" in step:
                lisa.settle(delivery, outcome(step["settle"]))
            return handlers.result(step)
        finally:
            if handlers.end(delivery) >= stop_after:
                stop.set()

    return handle


def handler_of_tasks(lisa: Any, handlers: Handlers, stop: threading.Event, stop_after: int) -> Any:
    async def handle(delivery: lr.AsyncDelivery) -> Any:
        handlers.begin()
        try:
            while handlers.begun < handlers.together:
                await asyncio.sleep(0.01)
            await asyncio.sleep(handlers.sleep)
            step = handlers.step(delivery)
            if "settle" in step:
                await lisa.settle(delivery, outcome(step["settle"]))
            return handlers.result(step)
        finally:
            if handlers.end(delivery) >= stop_after:
                stop.set()

    return handle


async def attempt(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Makes a call, in a thread if it blocks. Returns its error."""
    try:
        if inspect.iscoroutinefunction(call):
            return await call(*args, **named)
        return await asyncio.get_running_loop().run_in_executor(THREADS, lambda: call(*args, **named))
    except Exception as error:
        return error


THREADS = ThreadPoolExecutor(512)


class Driver:
    def __init__(self, in_threads: bool) -> None:
        self.in_threads = in_threads
        self.deliveries: list[Any] = []
        self.lisa: Any = None

    async def run(self, call: str, **command: Any) -> Any:
        return await getattr(self, call)(**command)

    async def client(self, url: str, **options: Any) -> Any:
        if "timeout" in options:
            options["timeout"] /= 1000
        if self.lisa:
            await attempt(self.lisa.close)
        self.lisa = (lr.Lisa if self.in_threads else lr.AsyncLisa)(url, **options)
        return {}

    async def send(self, topic: str, payload: str, options: dict[str, Any] | None = None) -> Any:
        return shown(await attempt(self.lisa.send, topic, payload, **(options or {})))

    async def send_concurrently(self, topic: str, messages: list[dict[str, Any]], callers: int) -> Any:
        slots = asyncio.Semaphore(callers)

        async def send(payload: str, **options: Any) -> Any:
            async with slots:
                return shown(await attempt(self.lisa.send, topic, payload, **options))

        return await asyncio.gather(*(send(**message) for message in messages))

    async def send_many(self, topic: str, messages: Any) -> Any:
        return shown(await attempt(self.lisa.send_many, topic, messages))

    async def get(self, topic: str, id: str) -> Any:
        return shown(await attempt(self.lisa.get, topic, id))

    async def cancel(self, topic: str, id: str) -> Any:
        return shown(await attempt(self.lisa.cancel, topic, id))

    async def deliver_now(self, topic: str, id: str) -> Any:
        return shown(await attempt(self.lisa.deliver_now, topic, id))

    async def reschedule(self, topic: str, id: str, options: dict[str, Any]) -> Any:
        return shown(await attempt(self.lisa.reschedule, topic, id, **options))

    async def cancel_key(self, topic: str, key: str) -> Any:
        return shown(await attempt(self.lisa.cancel_key, topic, key))

    async def reschedule_key(self, topic: str, key: str, options: dict[str, Any]) -> Any:
        return shown(await attempt(self.lisa.reschedule_key, topic, key, **options))

    async def requeue(self, topic: str, ids: Any, **group: str) -> Any:
        return shown(await attempt(self.lisa.requeue, topic, ids, **group))

    async def list_topics(self, topic: str, **prefix: str) -> Any:
        return shown(await attempt(self.lisa.list_topics, **prefix))

    async def get_topic(self, topic: str) -> Any:
        return shown(await attempt(self.lisa.get_topic, topic))

    async def put_topic(self, topic: str, settings: Any, **condition: Any) -> Any:
        return shown(await attempt(self.lisa.put_topic, topic, settings, **condition))

    async def remove_topic(self, topic: str, **options: Any) -> Any:
        return shown(await attempt(self.lisa.remove_topic, topic, **options))

    async def pause_topic(self, topic: str) -> Any:
        return shown(await attempt(self.lisa.pause_topic, topic))

    async def resume_topic(self, topic: str) -> Any:
        return shown(await attempt(self.lisa.resume_topic, topic))

    async def pause_group(self, topic: str, group: str) -> Any:
        return shown(await attempt(self.lisa.pause_group, topic, group))

    async def resume_group(self, topic: str, group: str) -> Any:
        return shown(await attempt(self.lisa.resume_group, topic, group))

    async def drain_group(self, topic: str, group: str) -> Any:
        return shown(await attempt(self.lisa.drain_group, topic, group))

    async def drop_group(self, topic: str, group: str) -> Any:
        return shown(await attempt(self.lisa.drop_group, topic, group))

    async def keep_group(self, topic: str, group: str) -> Any:
        return shown(await attempt(self.lisa.keep_group, topic, group))

    async def list_schedules(self, topic: str, **options: Any) -> Any:
        return shown(await attempt(self.lisa.list_schedules, **options))

    async def get_schedule(self, topic: str, schedule: str) -> Any:
        return shown(await attempt(self.lisa.get_schedule, schedule))

    async def backfill_schedule(self, topic: str, schedule: str, **period: Any) -> Any:
        return shown(await attempt(self.lisa.backfill_schedule, schedule, period.pop("from"), **period))

    async def put_schedule(self, topic: str, schedule: str, definition: Any, **condition: Any) -> Any:
        return shown(await attempt(self.lisa.put_schedule, schedule, definition, **condition))

    async def remove_schedule(self, topic: str, schedule: str, **condition: Any) -> Any:
        error = await attempt(self.lisa.remove_schedule, schedule, **condition)
        return shown(error) if error else {"removed": True}

    async def pause_schedule(self, topic: str, schedule: str) -> Any:
        return shown(await attempt(self.lisa.pause_schedule, schedule))

    async def resume_schedule(self, topic: str, schedule: str) -> Any:
        return shown(await attempt(self.lisa.resume_schedule, schedule))

    async def own_token(self, topic: str) -> Any:
        return shown(await attempt(self.lisa.own_token))

    async def list_tokens(self, topic: str, **options: Any) -> Any:
        return shown(await attempt(self.lisa.list_tokens, **options))

    async def get_token(self, topic: str, token: str) -> Any:
        return shown(await attempt(self.lisa.get_token, token))

    async def put_token(self, topic: str, token: str, definition: Any, **condition: Any) -> Any:
        return shown(await attempt(self.lisa.put_token, token, definition, **condition))

    async def rotate_token(self, topic: str, token: str, **step: Any) -> Any:
        return shown(await attempt(self.lisa.rotate_token, token, **step))

    async def remove_token(self, topic: str, token: str, **condition: Any) -> Any:
        error = await attempt(self.lisa.remove_token, token, **condition)
        return shown(error) if error else {"removed": True}

    async def run_schedule(self, topic: str, schedule: str) -> Any:
        return shown(await attempt(self.lisa.run_schedule, schedule))

    async def pull(self, topic: str, options: dict[str, Any] | None = None) -> Any:
        pulled = await attempt(self.lisa.pull, topic, **(options or {}))
        if isinstance(pulled, list):
            self.deliveries = pulled
        return shown(pulled)

    async def settle(self, topic: str, outcomes: list[Any]) -> Any:
        pairs = zip(self.deliveries, outcomes * len(self.deliveries))
        return await self._each(self.lisa.settle, [(one, outcome(body)) for one, body in pairs])

    async def settle_many(self, topic: str, outcomes: list[Any]) -> Any:
        pairs = [(one, outcome(body)) for one, body in zip(self.deliveries, outcomes)]
        return shown(await attempt(self.lisa.settle_many, pairs))

    async def extend(self, topic: str, lease: str) -> Any:
        return await self._each(self.lisa.extend, [(one, lease) for one in self.deliveries])

    async def _each(self, call: Callable[..., Any], arguments: list[Any]) -> Any:
        return shown(await asyncio.gather(*(attempt(call, *one) for one in arguments)))

    async def work(self, topic: str, handler: dict[str, Any], stop_after: int, **options: Any) -> Any:
        handlers, stop = Handlers(**handler), threading.Event()
        make = handler_of_threads if self.in_threads else handler_of_tasks
        result = await attempt(self.lisa.work, topic, make(self.lisa, handlers, stop, stop_after), stop=stop, **options)
        return shown(result) if result else {"handled": handlers.handled, "most": handlers.most}

    # Last, because it hides the type `list` in what follows.
    async def list(self, topic: str, options: dict[str, Any] | None = None) -> Any:
        options = {"from_" if name == "from" else name: value for name, value in (options or {}).items()}
        return shown(await attempt(self.lisa.list, topic, **options))


async def main() -> None:
    driver = Driver(sys.argv[1:] == ["threads"])
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await driver.run(**json.loads(line)), default=str), flush=True)


asyncio.run(main())
