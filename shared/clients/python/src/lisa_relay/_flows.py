"""The calls without their transport: a flow yields requests and pauses, and gets the answers. Both clients run them."""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, TypeVar, Union
from urllib.parse import quote

from . import _types as types
from ._errors import LisaError, Problem, Stale, TransportError, problem, problem_of

T = TypeVar("T")

MAX_ITEMS = 1000
MAX_BYTES = 4 * 1024 * 1024


@dataclass
class Request:
    """A request to send. `wait` is the time that the server may wait before it answers, in seconds."""

    method: str
    path: str
    headers: dict[str, bytes] = field(default_factory=dict)
    body: bytes = b""
    to_gateway: bool = False
    wait: float = 0


@dataclass
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Flow = Generator[Union[Request, float], Union[Reply, TransportError, None], T]


def with_json(method: str, path: str, body: Any, to_gateway: bool = False, wait: float = 0) -> Request:
    """Returns a request whose body is JSON."""
    content = json.dumps(body, ensure_ascii=False).encode()
    return Request(method, path, {"content-type": b"application/json"}, content, to_gateway, wait)


def exchange(request: Request, tries: int, message_id: str | None = None) -> Flow[Any]:
    """Sends a request until it has an answer that is no reason to repeat it, and returns the body."""
    in_doubt = False
    for attempt in range(1, tries + 1):
        answer = yield request
        error = failure(answer)
        if error is None:
            assert isinstance(answer, Reply)
            return json.loads(answer.body)
        if attempt == tries or not error.retryable:
            raise settle_doubt(error, in_doubt, message_id)
        in_doubt = in_doubt or error.in_doubt
        yield pause(attempt, error.retry_after)
    raise AssertionError("tries is at least 1")


def batch(
    request: Callable[[Any], Request], items: Sequence[Mapping[str, Any]], kind: type[T], tries: int
) -> Flow[list[T | LisaError]]:
    """Sends a batch, and again those of its items that can be repeated. Returns a result for each, in order."""
    results: dict[int, T | LisaError] = {}
    pending = list(range(len(items)))
    doubted: set[int] = set()
    for attempt in range(1, tries + 1):
        answer = yield request([items[index] for index in pending])
        failed = failure(answer)
        if failed is not None and not failed.retryable:
            raise failed
        if failed is None:
            assert isinstance(answer, Reply)
            read = [result_of(kind, body) for body in json.loads(answer.body)]
        else:
            read = [failed] * len(pending)
        if len(read) != len(pending):
            raise LisaError(f"{len(read)} results for a batch of {len(pending)}")
        results.update(zip(pending, read))
        errors = {index: result for index in pending if isinstance(result := results[index], LisaError)}
        for index, error in errors.items():
            results[index] = settle_doubt(error, index in doubted, items[index].get("id"))
        pending = [index for index, error in errors.items() if error.retryable]
        doubted.update(index for index in pending if errors[index].in_doubt)
        if not pending or attempt == tries:
            break
        yield pause(attempt, max(errors[index].retry_after for index in pending))
    return [results[index] for index in range(len(items))]


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Splits items into batches that Lisa accepts."""
    chunk: list[T] = []
    size = 0
    for item in items:
        length = len(json.dumps(item, ensure_ascii=False).encode())
        if chunk and (len(chunk) == MAX_ITEMS or size + length + 1 > MAX_BYTES - 2):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += length + 1
    if chunk:
        yield chunk


def failure(answer: Reply | TransportError | None) -> LisaError | None:
    """Returns the error of an answer, if it is one."""
    if isinstance(answer, Reply):
        is_good = 200 <= answer.status < 300
        return None if is_good else problem_of(answer.status, answer.body, answer.headers)
    return answer


def result_of(kind: type[T], body: Mapping[str, Any]) -> T | LisaError:
    """Reads the result of an item of a batch."""
    if "error" in body:
        return problem(body["error"].get("status", 500), body["error"])
    return types.read(kind, body)


def settle_doubt(error: LisaError, in_doubt: bool, message_id: str | None) -> LisaError:
    """Completes an error by what its call knows."""
    if isinstance(error, Stale):
        error.maybe_settled = in_doubt
    elif message_id is not None and not (isinstance(error, Problem) and error.id):
        # The items of a batch that had no answer share an error.
        error = type(error)(*error.args) if isinstance(error, TransportError) else error
        error.id = message_id
    return error


def pause(attempt: int, retry_after: float) -> float:
    """Returns the seconds until the next try: exponential with jitter, and not less than the server asks for."""
    backoff = min(8.0, 0.125 * 2.0 ** min(attempt, 6))
    return max(backoff, min(retry_after, 60.0)) * random.uniform(1.0, 1.25)


def path(*parts: str) -> str:
    """Returns a path with escaped parts."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def message_request(
    method: str, topic: str, message_id: str, key: str | None, body: Mapping[str, Any] | None = None
) -> Request:
    """Returns a request about a message."""
    where = path("topics", topic, "messages", message_id)
    request = Request(method, where) if body is None else with_json(method, where, body)
    if key is not None:
        request.headers["lisa-key"] = types.header("key", key)
    return request


def send(topic: str, payload: types.Payload, options: Mapping[str, Any], tries: int) -> Flow[types.Sent]:
    """Sends one message."""
    content, content_type = types.payload_bytes(payload)
    options = types.options_of(options, content_type)
    request = Request("POST", path("topics", topic, "messages"), types.option_headers(options), content)
    return types.read(types.Sent, (yield from exchange(request, tries, options["id"])))


def send_many(topic: str, messages: Iterable[types.NewMessage], tries: int) -> Flow[list[types.Sent | LisaError]]:
    """Sends many messages, in batches."""
    results: list[types.Sent | LisaError] = []
    where = path("topics", topic) + "/messages:batch"
    for chunk in chunks(map(types.batch_item, messages)):
        results += yield from batch(lambda items: with_json("POST", where, items), chunk, types.Sent, tries)
    return results


def settle_many(
    items: Iterable[tuple[types.DeliveryFields | str, types.Outcome]], tries: int
) -> Flow[list[types.Ended | LisaError]]:
    """Settles many deliveries, in batches."""
    results: list[types.Ended | LisaError] = []
    items = list(items)
    for chunk in chunks(map(settle_item, items)):
        results += yield from batch(
            lambda some: with_json("POST", "/v1/deliveries:settle", some, True), chunk, types.Ended, tries
        )
    for (delivery, _), result in zip(items, results):
        if isinstance(result, (types.Ended, Stale)):
            mark_settled(delivery)
    return results


def settle_item(item: tuple[types.DeliveryFields | str, types.Outcome]) -> dict[str, Any]:
    """Returns a delivery with its outcome as JSON has it."""
    delivery, outcome = item
    body = True if isinstance(outcome, types.Ack) else types.outcome_body(outcome)
    return {"token": token_of(delivery), type(outcome).__name__.lower(): body}


def settle(delivery: types.DeliveryFields | str, outcome: types.Outcome, tries: int) -> Flow[types.Ended]:
    """Settles a delivery."""
    where = path("deliveries", token_of(delivery), type(outcome).__name__.lower())
    try:
        body = yield from exchange(with_json("POST", where, types.outcome_body(outcome), True), tries)
    except Stale:
        mark_settled(delivery)
        raise
    mark_settled(delivery)
    return types.read(types.Ended, body)


def extend(delivery: types.DeliveryFields | str, lease: types.Duration | None, tries: int) -> Flow[types.Ended]:
    """Extends the lease of a delivery."""
    where = path("deliveries", token_of(delivery), "extend")
    body = types.given({"lease": lease})
    ended = types.read(types.Ended, (yield from exchange(with_json("POST", where, body, True), tries)))
    if isinstance(delivery, types.DeliveryFields) and ended.lease_until is not None:
        delivery.lease_until = ended.lease_until
    return ended


def token_of(delivery: types.DeliveryFields | str) -> str:
    """Returns the token of a delivery."""
    return delivery if isinstance(delivery, str) else delivery.token


def mark_settled(delivery: types.DeliveryFields | str) -> None:
    """Remembers that a delivery is settled."""
    if isinstance(delivery, types.DeliveryFields):
        delivery._ended.append(True)
