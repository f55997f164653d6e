"""The calls without their transport: a flow yields requests and pauses, and gets the answers. Both clients run them."""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, TypeVar, Union
from urllib.parse import quote

from . import _types as types
from ._errors import LisaError, Problem, Stale, TransportError, problem, problem_of

T = TypeVar("T")

MAX_ITEMS = 1000
MAX_BYTES = 4 * 1024 * 1024
# 16 MiB of payloads, each byte of which may take six in JSON, and their headers.
MAX_PAYLOADS = 128 * 1024 * 1024


@dataclass
class Request:
    """A request to send. `wait` is the time that the server may wait before it answers, in seconds."""

    method: str
    path: str
    headers: dict[str, bytes] = field(default_factory=dict)
    body: bytes = b""
    to_gateway: bool = False
    wait: float = 0
    # The most bytes of the answer.
    limit: int = 8 * 1024 * 1024


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


def exchange(request: Request, tries: int, read: Callable[[Any], T], message_id: str | None = None) -> Flow[T]:
    """Sends a request until it has an answer that is no reason to repeat it. Returns what `read` makes of the body."""
    in_doubt = False
    for attempt in range(1, tries + 1):
        answer = read_answer((yield request), read)
        if not isinstance(answer, LisaError):
            return answer
        if attempt == tries or not answer.retryable:
            raise settle_doubt(answer, in_doubt, message_id)
        in_doubt = in_doubt or answer.in_doubt
        yield pause(attempt, answer.retry_after)
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
        read = read_answer(answer, partial(results_of, kind, len(pending)))
        if isinstance(read, LisaError):
            if not read.retryable:
                raise read
            read = [read] * len(pending)
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


def read_answer(answer: Reply | TransportError | None, read: Callable[[Any], T]) -> T | LisaError:
    """Returns what `read` makes of the body of an answer, or the error of the answer."""
    if not isinstance(answer, Reply):
        return answer or TransportError("no answer")
    if not 200 <= answer.status < 300:
        return problem_of(answer.status, answer.body, answer.headers)
    try:
        return read(json.loads(answer.body))
    except Exception as error:
        # A proxy may answer with anything. Lisa may have carried out the request.
        return TransportError(f"not an answer from Lisa: {error!r}")


def results_of(kind: type[T], count: int, body: Any) -> list[T | LisaError]:
    """Reads the results of a batch."""
    results = [result_of(kind, one) for one in body]
    if len(results) != count:
        raise ValueError(f"{len(results)} results for a batch of {count}")
    return results


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
    request.limit = MAX_PAYLOADS
    if key is not None:
        request.headers["lisa-key"] = types.header("key", key)
    return request


def send(topic: str, payload: types.Payload, options: Mapping[str, Any], tries: int) -> Flow[types.Sent]:
    """Sends one message."""
    content, content_type = types.payload_bytes(payload)
    options = types.options_of(options, content_type)
    request = Request("POST", path("topics", topic, "messages"), types.option_headers(options), content)
    return (yield from exchange(request, tries, types.reader(types.Sent), options["id"]))


def send_many(topic: str, messages: Iterable[types.NewMessage], tries: int) -> Flow[list[types.Sent | LisaError]]:
    """Sends many messages, in batches."""
    results: list[types.Sent | LisaError] = []
    where = path("topics", topic) + "/messages:batch"
    # A wrong message is found before any is sent.
    items = [types.batch_item(index, message) for index, message in enumerate(messages)]
    for chunk in chunks(items):
        results += yield from batch(lambda items: with_json("POST", where, items), chunk, types.Sent, tries)
    return results


def settle_many(
    items: Iterable[tuple[types.DeliveryFields | str, types.Outcome]], tries: int
) -> Flow[list[types.Ended | LisaError]]:
    """Settles many deliveries, in batches."""
    results: list[types.Ended | LisaError] = []
    items = list(items)
    for chunk in chunks(map(settle_item, items)):
        results += yield from batch(deliveries_request("settle"), chunk, types.Ended, tries)
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
    """Settles a delivery. As in all calls, its token is in the body, because URLs are logged."""
    return only((yield from settle_many([(delivery, outcome)], tries)))


def extend(delivery: types.DeliveryFields | str, lease: types.Duration | None, tries: int) -> Flow[types.Ended]:
    """Extends the lease of a delivery."""
    item = types.given({"token": token_of(delivery), "lease": lease})
    ended = only((yield from batch(deliveries_request("extend"), [item], types.Ended, tries)))
    if isinstance(delivery, types.DeliveryFields) and ended.lease_until is not None:
        delivery.lease_until = ended.lease_until
    return ended


def deliveries_request(verb: str) -> Callable[[Any], Request]:
    """Returns the function that makes the request for a batch of deliveries."""
    return lambda items: with_json("POST", f"/v1/deliveries:{verb}", items, True)


def only(results: list[T | LisaError]) -> T:
    """Returns the result of a batch of one, or raises its error."""
    (result,) = results
    if isinstance(result, LisaError):
        raise result
    return result


def token_of(delivery: types.DeliveryFields | str) -> str:
    """Returns the token of a delivery."""
    return delivery if isinstance(delivery, str) else delivery.token


def mark_settled(delivery: types.DeliveryFields | str) -> None:
    """Remembers that a delivery is settled."""
    if isinstance(delivery, types.DeliveryFields):
        delivery._ended.append(True)
