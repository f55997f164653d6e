"""The calls without their transport: a flow yields requests and pauses, and gets the answers. Both clients run them."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Generic, Literal, TypeVar, Union, cast, get_args
from urllib.parse import quote, urlencode

from . import _types as types
from ._errors import LisaError, Stale, TransportError, problem, problem_of

T = TypeVar("T")

# Limits of a request with many items.
MAX_ITEMS = 500
MAX_BYTES = 1024 * 1024
# A larger payload gets a request of its own: in a batch, each byte may take six.
MAX_BATCHED = 64 * 1024
# 16 MiB of payloads, each byte of which may take six in JSON, and their headers.
MAX_PAYLOADS = 128 * 1024 * 1024
# The largest limit of a page.
MAX_PAGE = 1000
# 10,000 topics with their settings.
MAX_TOPICS = MAX_PAYLOADS

Listener = Literal["producer", "gateway", "manager"]
SETTLE, EXTEND = "/v1/deliveries:settle", "/v1/deliveries:extend"


@dataclass
class Request:
    """A request to send. `wait` is the time that the server may wait before it answers, in seconds."""

    method: str
    path: str
    headers: dict[str, bytes] = field(default_factory=dict)
    body: bytes = b""
    to: Listener = "producer"
    wait: float = 0
    # The most bytes of the answer.
    limit: int = 8 * 1024 * 1024


@dataclass
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


NO_CONTENT = object()
"""What the reader of an answer gets if its status is 204."""

Flow = Generator[Union[Request, float], Union[Reply, TransportError, None], T]


def with_json(method: str, path: str, body: Any, to: Listener = "producer", wait: float = 0) -> Request:
    """Returns a request whose body is JSON."""
    content = _ENCODER.encode(body).encode()
    return Request(method, path, {"content-type": b"application/json"}, content, to, wait)


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


Answer = Union["list[T | LisaError]", LisaError]
"""The results of the items of a request, or its error if it failed as a whole."""


# NaN is not JSON, and would fail the other items of a request.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Item:
    """An item of a batch, with what its tries have shown."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.json = _ENCODER.encode(body).encode()
        self.failures = 0
        self._id = body.get("id")
        self._in_doubt = False

    def conclude(self, result: T | LisaError, tries: int) -> T | LisaError | None:
        """Returns the result of a try if it is final, completed with what earlier tries have shown."""
        if not isinstance(result, LisaError):
            return result
        self.failures += 1
        if result.retryable and self.failures < tries:
            self._in_doubt = self._in_doubt or result.in_doubt
            return None
        return settle_doubt(result, self._in_doubt, self._id)


def fitting(items: Iterable[Item]) -> int:
    """Returns the number of leading items that fit in a request."""
    count = size = 0
    for item in items:
        size += len(item.json) + 1
        if count == MAX_ITEMS or (count and size > MAX_BYTES):
            break
        count += 1
    return count


def conclude(items: Sequence[Item], answer: Answer[T], tries: int) -> tuple[list[T | LisaError | None], float]:
    """Returns the final result of each item, or None if it is to be repeated, and the seconds until the repeat."""
    # Each item gets its own error, which names its id.
    results = [copy(answer) for _ in items] if isinstance(answer, LisaError) else answer
    final = [item.conclude(result, tries) for item, result in zip(items, results)]
    after = max((result.retry_after for result in results if isinstance(result, LisaError)), default=0.0)
    failures = max((item.failures for item in items), default=1)
    return final, pause(failures, after)


def attempt(where: str, items: Sequence[Item], kind: type[T], to: Listener) -> Flow[Answer[T]]:
    """Sends items in one request, once."""
    return read_answer((yield items_request(where, items, to)), partial(results_of, kind, len(items)))


def items_request(where: str, items: Sequence[Item], to: Listener) -> Request:
    """Returns a request whose body is an array of items."""
    body = b"[" + b",".join(item.json for item in items) + b"]"
    return Request("POST", where, {"content-type": b"application/json"}, body, to)


@dataclass
class SettledAndPulled(Generic[T]):
    """The results of settled items, in order, and the deliveries that were pulled after them."""

    results: list[types.Ended | LisaError]
    deliveries: list[T]


def settle_and_pull(
    topic: str,
    group: str,
    options: Mapping[str, Any],
    items: Sequence[Item],
    read: Callable[[Any], list[T]],
) -> Flow[SettledAndPulled[T] | LisaError]:
    """Settles items and pulls what is ready now, in one request, once."""
    where = f"{path('topics', topic, 'groups', group, 'settle-and-pull')}?{urlencode(types.given(options))}"
    request = items_request(where, items, "gateway")
    request.limit = MAX_PAYLOADS

    def read_both(body: Any) -> SettledAndPulled[T]:
        return SettledAndPulled(results_of(types.Ended, len(items), body["results"]), read(body))

    return read_answer((yield request), read_both)


def reader_of_page(kind: type[T], name: str, limit: int | None) -> Callable[[Any], T]:
    """Returns a function that reads a page of a list with this limit."""
    most = limit if isinstance(limit, int) else MAX_PAGE

    def read(body: Any) -> T:
        if len(body[name]) > most:
            raise ValueError(f"{len(body[name])} {name} for a page of {most}")
        return types.read(kind, body)

    return read


def reader_of_deliveries(kind: type[T], options: Mapping[str, Any], **fields: Any) -> Callable[[Any], list[T]]:
    """Returns a function that reads the deliveries of a pull with these options."""
    most, most_keys = options["max"], options.get("max_keys")

    def read(body: Any) -> list[T]:
        if len(body["deliveries"]) > most:
            # A worker would run too many handlers.
            raise ValueError(f"{len(body['deliveries'])} deliveries for a pull of {most}")
        deliveries = [types.read_delivery(kind, one, **fields) for one in body["deliveries"]]
        if most_keys is not None and len(runs := runs_of(deliveries)) > most_keys:
            raise ValueError(f"deliveries of {len(runs)} keys for a pull of {most_keys}")
        return deliveries

    return read


def runs_of(deliveries: Iterable[T]) -> list[list[T]]:
    """Returns the deliveries of each ordering key, in order. One without a key is alone."""
    runs: dict[Any, list[T]] = {}
    for n, delivery in enumerate(deliveries):
        key = cast(types.DeliveryFields, delivery).key
        runs.setdefault(n if key is None else key, []).append(delivery)
    return list(runs.values())


def in_order(where: str, items: Iterable[Item], kind: type[T], to: Listener, tries: int) -> Flow[list[T | LisaError]]:
    """Sends items in order, one request after the other. Returns a result for each.

    If a request is refused as a whole, no more are sent: they would be refused, too.
    """
    left = deque(items)
    order = list(left)
    results: dict[int, T | LisaError] = {}
    while left:
        pending = [left.popleft() for _ in range(fitting(left))]
        while pending:
            answer = yield from attempt(where, pending, kind, to)
            if isinstance(answer, LisaError) and not answer.retryable:
                pending += left
                left.clear()
            final, wait = conclude(pending, answer, tries)
            results.update((id(item), result) for item, result in zip(pending, final) if result is not None)
            pending = [item for item, result in zip(pending, final) if result is None]
            if pending:
                yield wait
    return [results[id(item)] for item in order]


def read_answer(answer: Reply | TransportError | None, read: Callable[[Any], T]) -> T | LisaError:
    """Returns what `read` makes of the body of an answer, or the error of the answer."""
    if not isinstance(answer, Reply):
        return answer or TransportError("no answer")
    if not 200 <= answer.status < 300:
        return problem_of(answer.status, answer.body, answer.headers)
    try:
        return read(NO_CONTENT if answer.status == 204 else json.loads(answer.body))
    except Exception as error:
        # A proxy may answer with anything. Lisa may have carried out the request. The `repr` of a `UnicodeDecodeError`
        # would quote the answer, which may have the token of a delivery.
        return TransportError(f"not an answer from Lisa: {type(error).__name__}: {error}")


def read_no_content(body: Any) -> None:
    """Reads an answer without a body."""
    if body is not NO_CONTENT:
        raise ValueError("it has a body")


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
    elif message_id is not None:
        # The error may name another message, such as the one to replace.
        error.id = message_id
    return error


def pause(attempt: int, retry_after: float) -> float:
    """Returns the seconds until the next try: exponential with jitter, and not less than the server asks for."""
    backoff = min(8.0, 0.125 * 2.0 ** min(attempt, 6))
    return max(backoff, min(retry_after, 60.0)) * random.uniform(1.0, 1.25)


def path(*parts: str) -> str:
    """Returns a path with escaped parts."""
    for part in parts:
        # httpx drops "." and ".." from a URL: the request would be about something else.
        if not (isinstance(part, str) and part) or part in (".", ".."):
            raise ValueError(f"{part!r} is not the name of a topic, group, schedule or token, or the id of a message")
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def message_request(
    method: str,
    topic: str,
    message_id: str,
    key: str | None,
    body: Mapping[str, Any] | None = None,
    verb: str | None = None,
) -> Request:
    """Returns a request about a message."""
    where = path("topics", topic, "messages", message_id, *([verb] if verb else []))
    request = Request(method, where) if body is None else with_json(method, where, body)
    request.limit = MAX_PAYLOADS
    if key is not None:
        request.headers["lisa-key"] = types.header("key", key)
    return request


def key_request(method: str, topic: str, key: str, body: Mapping[str, Any] | None = None) -> Request:
    """Returns a request about all messages of an ordering key."""
    types.check("key", key)
    where = path("topics", topic, "messages")
    request = Request(method, where) if body is None else with_json(method, where, body)
    request.headers["lisa-key"] = types.header("key", key)
    return request


def list_request(topic: str, options: Mapping[str, Any]) -> Request:
    """Returns a request for a page of messages."""
    types.check_names(options, types.ListOptions)
    query = types.given({name.rstrip("_"): value for name, value in options.items()})
    for name in ("group", "key"):
        if name in query:
            types.check(name, query[name])
    return Request("GET", f"{path('topics', topic, 'messages')}?{urlencode(query)}", to="manager")


def requeue_request(topic: str, ids: Iterable[str], group: str) -> Request:
    """Returns a request that requeues messages from garbage."""
    if not isinstance(ids, Iterable) or isinstance(ids, str) or not (ids := list(ids)):
        raise ValueError(f"ids: {ids!r} is not a list of ids, or is empty")
    for one in ids:
        types.check("ids", one)
    where = path("topics", topic, "groups", group, "garbage", "requeue")
    return with_json("POST", where, {"ids": ids}, "manager")


def topics_request(prefix: str | None) -> Request:
    """Returns a request for the list of topics."""
    return Request("GET", "/v1/topics" + query_of({"prefix": prefix}), to="manager", limit=MAX_TOPICS)


def topic_request(topic: str, settings: Mapping[str, Any], if_match: int | None, create_only: bool) -> Request:
    """Returns a request that creates a topic, or replaces its settings."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings: {settings!r} is not a mapping")
    request = with_json("PUT", path("topics", topic), types.given(settings), "manager")
    return with_condition(request, if_match, create_only)


def removal_request(topic: str, how: types.Removal | None, if_match: int | None) -> Request:
    """Returns a request that removes a topic."""
    if how is not None and how not in get_args(types.Removal):
        raise ValueError(f"how: {how!r} is neither 'drain' nor 'force'")
    query = "" if how is None else f"?how={how}"
    return with_condition(Request("DELETE", path("topics", topic) + query, to="manager"), if_match)


def group_request(topic: str, group: str, verb: str) -> Request:
    """Returns a request that changes a group."""
    return Request("POST", path("topics", topic, "groups", group, verb), to="manager")


def with_condition(request: Request, if_match: int | None, create_only: bool = False) -> Request:
    """Adds the condition of a change: the version that is to be changed, or that there is none."""
    if type(create_only) is not bool:
        raise TypeError(f"create_only: {create_only!r} is not a boolean")
    if create_only:
        request.headers["if-none-match"] = b"*"
    if if_match is None:
        return request
    if create_only:
        raise ValueError("create_only: cannot be combined with if_match")
    if type(if_match) is not int or if_match < 1:
        raise ValueError(f"if_match: {if_match!r} is not a version: use an integer of at least 1")
    request.headers["if-match"] = f'"{if_match}"'.encode()
    return request


def query_of(options: Mapping[str, Any]) -> str:
    """Returns the query of a list. Each text in its options must have a character."""
    query = types.given(options)
    for name, value in query.items():
        if name != "limit":
            types.check(name, value)
    return f"?{urlencode(query)}" if query else ""


def page_request(where: str, prefix: str | None, limit: int | None, cursor: str | None) -> Request:
    """Returns a request for a page of a list by name."""
    query = query_of({"prefix": prefix, "limit": limit, "cursor": cursor})
    return Request("GET", where + query, to="manager")


def definition_request(
    schedule: str, definition: Mapping[str, Any], if_match: int | None, create_only: bool
) -> Request:
    """Returns a request that creates a schedule, or replaces its definition."""
    if not isinstance(definition, Mapping):
        raise TypeError(f"definition: {definition!r} is not a mapping")
    request = with_json("PUT", path("schedules", schedule), types.given(definition), "manager")
    return with_condition(request, if_match, create_only)


def backfill_request(schedule: str, first: types.Instant, to: types.Instant | None, dry_run: bool) -> Request:
    """Returns a request that sends a message for each time of a schedule in a period."""
    if first is None:
        raise TypeError("from_: is None")
    body = types.given({"from": first, "to": to, "dry_run": dry_run})
    return with_json("POST", path("schedules", schedule, "backfill"), body, "manager")


def schedule_request(method: str, schedule: str, *verb: str) -> Request:
    """Returns a request about a schedule."""
    return Request(method, path("schedules", schedule, *verb), to="manager")


def token_definition_request(
    token: str, definition: Mapping[str, Any], if_match: int | None, create_only: bool
) -> Request:
    """Returns a request that creates a token, or replaces its permissions."""
    if not isinstance(definition, Mapping):
        raise TypeError(f"definition: {definition!r} is not a mapping")
    request = with_json("PUT", path("tokens", token), types.given(definition), "manager")
    return with_condition(request, if_match, create_only)


def rotation_request(token: str, step: types.RotationStep) -> Request:
    """Returns a request for a step of the rotation of a token."""
    if step not in get_args(types.RotationStep):
        raise ValueError(f"step: {step!r} is neither 'begin', 'finish' nor 'cancel'")
    return with_json("POST", path("tokens", token, "rotate"), {"step": step}, "manager")


def send(topic: str, payload: types.Payload, options: Mapping[str, Any], tries: int) -> Flow[types.Sent]:
    """Sends one message in a request of its own."""
    content, content_type = types.payload_bytes(payload)
    options = types.options_of(options, content_type)
    request = Request("POST", path("topics", topic, "messages"), types.option_headers(options), content)
    return (yield from exchange(request, tries, types.reader(types.Sent), options["id"]))


def drop_idle(batchers: dict[str, Any]) -> None:
    """Forgets the topics to which nothing is being sent."""
    for topic, batcher in list(batchers.items()):
        if batcher.is_idle:
            batchers.pop(topic, None)


def send_path(topic: str) -> str:
    """Returns the path of a batch of messages."""
    return path("topics", topic) + "/messages:batch"


def send_many(topic: str, messages: Iterable[types.NewMessage], tries: int) -> Flow[list[types.Sent | LisaError]]:
    """Sends many messages, in batches."""
    # A wrong message is found before any is sent.
    items = [Item(types.batch_item(index, message)) for index, message in enumerate(messages)]
    return (yield from in_order(send_path(topic), items, types.Sent, "producer", tries))


def settle_many(
    items: Iterable[tuple[types.DeliveryFields | str, types.Outcome]], tries: int
) -> Flow[list[types.Ended | LisaError]]:
    """Settles many deliveries, in batches."""
    items = list(items)
    results = yield from in_order(SETTLE, map(settle_item, items), types.Ended, "gateway", tries)
    for (delivery, _), result in zip(items, results):
        note_settled(delivery, result)
    return results


def settle_item(item: tuple[types.DeliveryFields | str, types.Outcome]) -> Item:
    """Returns a delivery with its outcome. As in all calls, its token is in the body, because URLs are logged."""
    delivery, outcome = item
    body = True if isinstance(outcome, types.Ack) else types.outcome_body(outcome)
    return Item({"token": token_of(delivery), type(outcome).__name__.lower(): body})


def extend_item(delivery: types.DeliveryFields | str, lease: types.Duration | None) -> Item:
    """Returns a delivery with its new lease."""
    return Item(types.given({"token": token_of(delivery), "lease": lease}))


def note_extended(delivery: types.DeliveryFields | str, ended: types.Ended) -> types.Ended:
    """Remembers the new end of a lease."""
    if isinstance(delivery, types.DeliveryFields) and ended.lease_until is not None:
        delivery.lease_until = ended.lease_until
    return ended


def token_of(delivery: types.DeliveryFields | str) -> str:
    """Returns the token of a delivery."""
    return delivery if isinstance(delivery, str) else delivery.token


def note_settled(delivery: types.DeliveryFields | str, result: types.Ended | LisaError) -> None:
    """Remembers that a delivery is settled, or known to be stale."""
    if isinstance(delivery, types.DeliveryFields) and isinstance(result, (types.Ended, Stale)):
        delivery._ended.append("stale" if isinstance(result, Stale) else result.outcome)
