"""The values that the client takes and returns, and how they are written in JSON and headers."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any, Callable, Literal, TypedDict, TypeVar, Union

T = TypeVar("T")

Duration = Union[timedelta, str]
"""A timedelta, or a string like `250ms`, `30s`, `2h` or `14d`."""

Instant = Union[datetime, str]
"""A datetime with a time zone, or a string in RFC 3339."""

Json = Union[dict[str, Any], list[Any], int, float, bool, None]
Payload = Union[bytes, str, Json]
"""Bytes and strings are sent unchanged, and everything else as JSON."""

Removal = Literal["drain", "force"]
"""The treatment of the messages of a topic that is removed: they are delivered first, or removed, too."""

RotationStep = Literal["begin", "finish", "cancel"]
"""A step of the replacement of a token's secret."""


class SendOptions(TypedDict, total=False):
    """The options of a message, as in the HTTP interface. None stands for the default."""

    id: str | None
    delay: Duration | None
    deliver_at: Instant | None
    key: str | None
    merge_key: str | None
    priority: int | None
    ttl: Duration | None
    expires_at: Instant | None
    max_attempts: int | None
    retry: Mapping[str, Any] | None
    replace: str | None
    durability: str | None
    even_if_cancelled: bool | None
    headers: Mapping[str, str] | None


class NewMessage(SendOptions):
    """A message of a batch."""

    payload: Payload


class ListOptions(TypedDict, total=False):
    """The options of a list, as in the HTTP interface. None stands for the default.

    `state` is `waiting` by default. `group` is required if the topic has several, except for waiting messages and those
    of a `key`. `key` lists the messages of an ordering key in any state; the topic needs `key_index`. With the state
    `garbage`, `key`, `reason` and `error` are filters. `error` is a text of 1 to 200 characters in the last error; `#`,
    `*` and `…` stand for any text. `from_` (`from` is a keyword in Python) is the first time of a delivery, or of a
    move to garbage, and `to` the first one that is too late. `order` is `oldest` (the default) or `newest`. A page has
    up to `limit` messages, 1 to 1000 and by default 100. `cursor` is the `next` of the last page.
    """

    state: str | None
    group: str | None
    key: str | None
    error: str | None
    reason: str | None
    from_: Instant | None
    to: Instant | None
    order: str | None
    limit: int | None
    cursor: str | None


# The most deliveries of a pull.
MAX_PULL = 200

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PARTS = re.compile(r"(?:\s*([0-9]+)\s*(ms|s|m|h|d))+\s*", re.ASCII)
_DURATIONS = {"delay", "ttl", "after", "lease", "wait", "catch_up"}
_INSTANTS = {"deliver_at", "expires_at", "until", "from", "to"}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_KEPT = {"content-type", "traceparent", "tracestate"}


def plain(name: str, value: Any) -> Any:
    """Returns the value as JSON has it: a duration and an instant as text. Rounds durations up to milliseconds."""
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise ValueError(f"{name}: {value.total_seconds()} s is negative")
        return f"{-(-value // timedelta(milliseconds=1))}ms"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name}: {value} has no time zone; use datetime.now(timezone.utc), for example")
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: plain(key, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(name, item) for item in value]
    if name in _DURATIONS and not isinstance(value, str):
        raise TypeError(f"{name}: {value!r} is not a duration: use a timedelta, or a string like '30s'")
    if name in _INSTANTS and not isinstance(value, str):
        raise TypeError(f"{name}: {value!r} is not an instant: use a datetime, or a text in RFC 3339")
    return value


def seconds(name: str, value: Any) -> float:
    """Returns a duration in seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    text = plain(name, value)
    if not isinstance(value, str) or not _PARTS.fullmatch(text):
        raise ValueError(f"{name}: {value!r} is not a duration: use a timedelta, or a string like '30s'")
    return sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"([0-9]+)\s*([a-z]+)", text))


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that are not None, as JSON has them."""
    return {name: plain(name, value) for name, value in values.items() if value is not None}


def check(name: str, value: Any) -> None:
    """Raises an error if an argument is not a text, or is empty."""
    if not (isinstance(value, str) and value):
        raise ValueError(f"{name}: {value!r} is not a string, or is empty")


def check_count(name: str, value: Any) -> None:
    """Raises an error if an argument is not a number of deliveries of a pull."""
    if type(value) is not int or not 1 <= value <= MAX_PULL:
        raise ValueError(f"{name}: {value!r} is not an integer of 1 to {MAX_PULL}")


def check_names(options: Mapping[str, Any], kind: Any) -> None:
    """Raises an error for options that are not fields of a `TypedDict`."""
    names = kind.__annotations__.keys()
    for name in options:
        if name not in names:
            raise TypeError(f"unknown option {name!r}; must be one of {', '.join(names)}")


def options_of(options: Mapping[str, Any], content_type: str) -> dict[str, Any]:
    """Returns the options of a message as JSON has them, with an id and the content type."""
    check_names(options, SendOptions)
    result = given(options)
    result.setdefault("id", new_id())
    headers = {name.lower(): value for name, value in result.get("headers", {}).items()}
    result["headers"] = {"content-type": content_type, **headers}
    return result


def option_headers(options: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the headers of a request that sends one message with these options."""
    result = {}
    for name, value in options.items():
        if name != "headers":
            is_text = isinstance(value, str)
            result["lisa-" + name.replace("_", "-")] = header(name, value if is_text else json.dumps(value))
    for name, value in options["headers"].items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"headers: {name!r} is not the name of a header")
        result[name if name in _KEPT else "lisa-header-" + name] = header(f"headers.{name}", value)
    return result


def header(name: str, value: str) -> bytes:
    """Returns the value of a header. HTTP would drop spaces around it."""
    if value != value.strip(" \t") or any(char < " " or char == "\x7f" for char in value):
        raise ValueError(f"{name}: {value!r} cannot be in a header: it has a control character, or spaces around it")
    return value.encode()


def payload_bytes(payload: Payload) -> tuple[bytes, str]:
    """Returns a payload with its content type."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload), "application/octet-stream"
    if isinstance(payload, str):
        return payload.encode(), "text/plain; charset=utf-8"
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(), "application/json"


def batch_item(index: int, message: NewMessage) -> dict[str, Any]:
    """Returns a message of a batch as JSON has it. Its errors name the index."""
    options: dict[str, Any] = dict(message)
    try:
        if "payload" not in options:
            raise TypeError("payload: is missing")
        payload = options.pop("payload")
        content, content_type = payload_bytes(payload)
        result = options_of(options, content_type)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"message {index}: {error}") from None
    return with_payload(result, payload, content)


def with_payload(options: dict[str, Any], payload: Payload, content: bytes) -> dict[str, Any]:
    """Adds a payload to the options of a message, as JSON has it."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return {**options, "payload_base64": base64.b64encode(content).decode()}
    return {**options, "payload_text": content.decode()}


def new_id() -> str:
    """Returns a new UUID of version 7."""
    number = int.from_bytes((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10), "big")
    number = number & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


@dataclass
class Sent:
    """A message that was accepted.

    `outcome` is `waiting`, `ready`, `merged`, `duplicate` or `rescheduled`. A `duplicate` means that an earlier send
    with this id was accepted, which may be an earlier try of this call. `ended` is set if that message has ended.
    """

    id: str
    outcome: str
    due_at: datetime | None = None
    ended: str | None = None
    durability: str | None = None


@dataclass
class _Content:
    id: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    payload: bytes = field(default=b"", repr=False)

    def text(self) -> str:
        """Returns the payload as text."""
        return self.payload.decode()

    def json(self) -> Any:
        """Returns the payload, read as JSON."""
        return json.loads(self.payload)


@dataclass
class Cancelled(_Content):
    """A cancelled message. Its headers and payload are empty if the cancel was repeated."""

    in_garbage: list[str] = field(default_factory=list)


@dataclass
class FailedAttempt:
    """A failed attempt. `outcome` is `failed`, `rejected` or `lease_expired`. Lisa keeps 200 bytes of an error."""

    at: datetime
    outcome: str
    error: str
    consumer: str | None = None


@dataclass
class GroupState:
    """The state of a message in a group, and what it waits for.

    `holder` is the message that holds its ordering key, if it is parked. `attempts` are its last failed attempts,
    up to five, newest first.
    """

    group: str
    state: str
    why: str
    holder: str | None = None
    attempts: list[FailedAttempt] = field(default_factory=list)


@dataclass
class Message(_Content):
    """A stored message. `state` is that in the first group that still has it.

    `error` is the last one. `reason` says why it is in garbage: `exhausted`, `rejected` or `expired`.
    """

    state: str = ""
    topic: str = ""
    attempt: int = 0
    priority: int = 0
    due_at: datetime | None = None
    expires_at: datetime | None = None
    key: str | None = None
    merge_key: str | None = None
    max_attempts: int | None = None
    retry: dict[str, Any] | None = None
    consumer: str | None = None
    error: str | None = None
    reason: str | None = None
    garbage_at: datetime | None = None
    groups: list[GroupState] = field(default_factory=list)


@dataclass
class ListedMessage:
    """A message of a page. `attempt` is the current or next one; in garbage, the number of attempts made.

    `error` is the last one. `reason` says why it is in garbage: `exhausted`, `rejected` or `expired`.
    """

    id: str
    state: str
    attempt: int
    due_at: datetime | None = None
    key: str | None = None
    consumer: str | None = None
    error: str | None = None
    reason: str | None = None
    garbage_at: datetime | None = None


@dataclass
class MessagePage:
    """A page of messages, and the cursor of the next page: None on the last one.

    With a filter of garbage, a page may be short or empty and still have a `next`.
    """

    messages: list[ListedMessage]
    next: str | None = None


@dataclass
class CancelledKey:
    """The number of messages of an ordering key that were cancelled, and of those that could not be.

    `in_flight` has also those that are ready. `in_garbage` are the groups that keep copies of cancelled messages in
    their garbage. A repeated cancel does not count the messages of an earlier try.
    """

    cancelled: int
    garbage: int
    in_flight: int
    in_garbage: list[str] = field(default_factory=list)


@dataclass
class RescheduledKey:
    """The number of messages of an ordering key that were rescheduled, and of those that could not be.

    Its fields are those of `CancelledKey`.
    """

    rescheduled: int
    garbage: int
    in_flight: int
    in_garbage: list[str] = field(default_factory=list)


@dataclass
class Requeued:
    """The number of messages that were requeued and that were found, and the ids that are not in the garbage."""

    done: int
    found: int
    missing: list[str] = field(default_factory=list)


@dataclass
class Topic:
    """A topic with the settings in force.

    `epoch` grows with each change of the topic, and goes on if it is created again. `groups` are all its groups,
    including those that the settings do not name. `removal` is `drain` or `force` if it is being removed. `resharding`
    is true while its number of shards is changed.
    """

    topic: str
    epoch: int
    settings: dict[str, Any]
    groups: list[str]
    removal: str | None = None
    resharding: bool = False


@dataclass
class DamagedTopic:
    """A topic whose settings cannot be read, and the reason."""

    topic: str
    error: str


@dataclass
class TopicList:
    """Topics by name, and those whose settings cannot be read."""

    topics: list[Topic]
    damaged: list[DamagedTopic] = field(default_factory=list)


@dataclass
class GroupStats:
    """The numbers of messages of a group by state, at one instant of each shard.

    `backlog` are due, and held back by a limit or a pause. `parked` are due, behind an earlier message of their
    ordering key. `consumers` have reported within the last 30 s. `oldest_due_age_ms` is the age of the oldest message
    that is due and that no consumer holds, since its due time, and `oldest_ready_age_ms` that of the first ready
    message that no consumer has read. `configured` is false if the settings do not name the group, and None if it
    belongs to one running consumer (`instance`). `retiring` is `drain` or `drop` if the group is being removed.
    `never_read` is true if messages are ready and no consumer has ever read one.
    """

    group: str
    backlog: int
    parked: int
    ready: int
    in_flight: int
    retry: int
    garbage: int
    consumers: int
    oldest_due_age_ms: int
    oldest_ready_age_ms: int
    configured: bool | None = None
    paused: bool = False
    retiring: str | None = None
    instance: bool = False
    never_read: bool = False


@dataclass
class TopicStats:
    """The numbers of messages of a topic, at one instant of each shard.

    `stored` includes garbage (dead letters), and counts a message once for any number of groups. `waiting` are not yet
    due. `overdue_ms` is the age of the oldest message that is due and that no consumer holds. `tombstones` are the
    ended ids that are remembered for the `dedup_window`. `counters` count since the topic was created.
    `conservation_error` must be 0. `bytes` is the size of the stored messages, if `max_bytes` limits it. `full` is true
    if a shard refuses sends. `migrating` are still on retiring shards, while the number of shards is changed.
    """

    stored: int
    waiting: int
    overdue_ms: int
    tombstones: int
    paused: bool
    counters: dict[str, int]
    conservation_error: int
    next_due: datetime | None = None
    bytes: int | None = None
    full: bool = False
    migrating: int | None = None


@dataclass
class TopicDetails:
    """A topic with its settings, groups and counts. `epoch` and `removal` are those of `Topic`."""

    topic: str
    epoch: int
    settings: dict[str, Any]
    groups: list[GroupStats]
    stats: TopicStats
    created_at: datetime | None = None
    removal: str | None = None


@dataclass
class TopicRemoval:
    """A topic that is being removed, by `drain` or `force`. `stored` is the number of messages that it still stores."""

    topic: str
    removal: str
    stored: int


@dataclass
class TopicPaused:
    """A topic that was paused or resumed. `changed` is false if it was in that state already."""

    topic: str
    paused: bool
    changed: bool


@dataclass
class GroupPaused:
    """A group that was paused or resumed. `changed` is false if it was in that state already."""

    topic: str
    group: str
    paused: bool
    changed: bool


@dataclass
class GroupRetired:
    """A group that was drained, dropped or kept. `changed` is false if it was in that state already.

    `left` is the number of messages that it still has. `retiring` is `drain` or `drop`, and None if it is kept.
    `configured` is true if the settings of the topic name it: the next start of a manager, or change of the topic,
    creates it again. `messages_wait` is true if no group of the topic gets messages: due ones wait until one does.
    """

    topic: str
    group: str
    changed: bool
    left: int
    retiring: str | None = None
    configured: bool = False
    messages_wait: bool = False


@dataclass
class ListedSchedule:
    """A schedule of a page, and its progress.

    `declared_in_file` is true if the configuration of the manager declares it. `sent_until` is the newest of its times
    for which a message was sent, possibly ahead of that time. `next` is its next time, and None if it is paused, since
    `paused_since`. `missed` is the number of its times for which no message was sent because no manager was available,
    or because the topic refused it, and `newest_missed` the newest of them. `error` is that of its last send, if it
    failed, at `error_at`.
    """

    schedule: str
    topic: str
    cron: str
    time_zone: str
    declared_in_file: bool
    sent_until: datetime | None = None
    next: datetime | None = None
    missed: int = 0
    newest_missed: datetime | None = None
    paused_since: datetime | None = None
    error: str | None = None
    error_at: datetime | None = None


@dataclass
class _Definition:
    definition: dict[str, Any]
    next_times: list[datetime]
    warnings: list[str]


# Of a dataclass, the fields without a default come first: those of the last base.
@dataclass
class Schedule(ListedSchedule, _Definition):
    """A schedule with its definition and its next five times, whether it is paused or not.

    `version` grows with each change of its definition, and is None if the configuration of the manager declares it.
    `warnings` are about times that may surprise: days that some months do not have, and clock changes that skip or
    repeat a time.
    """

    version: int | None = None


@dataclass
class DamagedSchedule:
    """A schedule whose definition cannot be read, and the reason."""

    schedule: str
    error: str


@dataclass
class SchedulePage:
    """A page of schedules by name, and the cursor of the next page: None on the last one.

    A page with large definitions has fewer schedules than its limit.
    """

    schedules: list[ListedSchedule]
    next: str | None = None
    damaged: list[DamagedSchedule] = field(default_factory=list)


@dataclass
class Backfilled:
    """The number of times of a backfill, up to 1,000, and of the messages that it has sent.

    `duplicates` are the times for which there was a message already, also of an earlier try. `next` is the `from_` of
    the next call, and None at the end. Of a dry run, `sent` and `duplicates` are 0.
    """

    schedule: str
    topic: str
    sent: int
    duplicates: int
    times: int
    next: datetime | None = None


@dataclass
class SchedulePaused:
    """A schedule that was paused or resumed. `changed` is false if it was in that state already."""

    schedule: str
    paused: bool
    changed: bool


@dataclass
class ScheduleRun:
    """The message that a run of a schedule has sent.

    `sent` is false if an earlier run has sent it in the same second.
    """

    schedule: str
    topic: str
    id: str
    sent: bool


@dataclass
class Token:
    """A token, without its secret.

    `topics`, `groups` and `schedules` are those that it reaches, and None for all; without `schedules`, it reaches
    those whose names are in `topics`. It is refused from `expires` on. `sends_per_second` is the number of messages
    that it may send in a second, in each process. The quotas are the largest number of topics that it reaches, of their
    streams (one for each group on each shard), of the messages and bytes that they may hold together, and of schedules;
    None stands for any. `is_rotating` is true while its previous secret is accepted as well, and `previous_used` the
    time at which that was last used. `version` grows with each change of the token. It and `created` are None if the
    configuration of the manager declares the token, and of one's own token. `hides_stored` is true if a token of this
    name is also stored; that of the configuration is accepted.
    """

    token: str
    scopes: list[str]
    declared_in_file: bool
    has_expired: bool
    is_rotating: bool
    topics: list[str] | None = None
    groups: list[str] | None = None
    schedules: list[str] | None = None
    expires: datetime | None = None
    sends_per_second: int | None = None
    max_topics: int | None = None
    max_streams: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    max_schedules: int | None = None
    version: int | None = None
    created: datetime | None = None
    created_by: str | None = None
    previous_used: datetime | None = None
    hides_stored: bool = False


@dataclass
class QuotaUse:
    """The used part of each quota of a token, also by other tokens that reach the same names.

    None stands for no quota. `messages` is the sum of `max_messages` of the topics that the token reaches, and `bytes`
    that of `max_bytes`. A topic without this limit counts as an equal part, and one that holds more than its limit as
    what it holds.
    """

    topics: int | None = None
    streams: int | None = None
    messages: int | None = None
    bytes: int | None = None
    schedules: int | None = None


@dataclass
class OwnToken(Token):
    """The token of the client, and what is used of its quotas."""

    used: QuotaUse = field(default_factory=QuotaUse)


@dataclass
class DamagedToken:
    """A token whose record cannot be read, and the reason. It is not accepted."""

    token: str
    error: str


@dataclass
class TokenPage:
    """A page of tokens by name, and the cursor of the next page: None on the last one."""

    tokens: list[Token]
    next: str | None = None
    damaged: list[DamagedToken] = field(default_factory=list)


@dataclass
class ChangedToken:
    """A token that was created by call. `version` changes whenever the token does.

    `secret` is what its holder sends as a bearer token, if this call has generated it. No later call returns it.
    `is_rotating` is true while its previous secret is accepted as well.
    """

    token: str
    version: int
    scopes: list[str]
    is_rotating: bool
    secret: str | None = field(default=None, repr=False)


@dataclass
class DeliveryFields(_Content):
    """A delivery that was pulled, with a lease. `token` settles it, and is a secret."""

    topic: str = ""
    group: str = ""
    token: str = field(default="", repr=False)
    attempt: int = 1
    max_attempts: int = 1
    due_at: datetime = datetime.min
    lease_until: datetime = datetime.min
    late: bool = False
    key: str | None = None
    # How it has ended, or `stale`. Copies of a delivery share it.
    _ended: list[str] = field(default_factory=list, repr=False)

    @property
    def settled(self) -> bool:
        """True if a call has settled this delivery."""
        return bool(self._ended)

    @property
    def is_last_attempt(self) -> bool:
        """True if a failure moves the message to garbage (dead letters)."""
        return self.attempt >= self.max_attempts


@dataclass
class Ended:
    """The outcome of a delivery: `acked`, `retry`, `deferred`, `garbage`, `expired`, `lost`; `extended` for a lease."""

    outcome: str
    due_at: datetime | None = None
    lease_until: datetime | None = None


@dataclass(frozen=True)
class Ack:
    """The work is done; the message is removed."""


@dataclass(frozen=True)
class Retry:
    """The attempt failed. `after` replaces the delay of the retry policy."""

    after: Duration | None = None
    error: str | None = None


@dataclass(frozen=True)
class Defer:
    """Deliver it later, without counting an attempt: after a delay, or at a time."""

    after: Duration | None = None
    until: Instant | None = None


@dataclass(frozen=True)
class Reject:
    """Move it to garbage (dead letters)."""

    error: str | None = None


Outcome = Union[Ack, Retry, Defer, Reject]


def outcome_body(outcome: Outcome) -> dict[str, Any]:
    """Returns the body of the route of an outcome. Lisa keeps 1 KiB of an error."""
    body = given(vars(outcome))
    if "error" in body:
        body["error"] = body["error"].encode(errors="replace")[:1024].decode(errors="ignore")
    return body


# The types of fields that are checked when they are read.
JSON_TYPES = {"int": int, "bool": bool, "str": str, "list": list, "dict": dict}


def reader(kind: type[T]) -> Callable[[Any], T]:
    """Returns the function that reads a value from JSON."""
    return lambda body: read(kind, body)


@cache
def _json_types(kind: Any) -> dict[str, tuple[type, ...] | None]:
    """Returns the fields of a class, each with the types that it may have in JSON, or None if they are not checked."""
    return {one.name: _json_type(str(one.type)) for one in fields(kind)}


def _json_type(annotation: str) -> tuple[type, ...] | None:
    kind = JSON_TYPES.get(re.split(r"\[| \| ", annotation)[0])
    return None if kind is None else (kind, type(None)) if annotation.endswith("None") else (kind,)


@cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """Returns the fields of a class that JSON has in another form, each with the function that reads it."""
    found = ((one.name, _reader_of(str(one.type).partition(" | ")[0])) for one in fields(kind))
    return {name: read for name, read in found if read is not None}


def _reader_of(annotation: str) -> Callable[[Any], Any] | None:
    if annotation.startswith("list["):
        read_one = _reader_of(annotation[5:-1])
        return None if read_one is None else lambda items: [read_one(one) for one in items]
    if annotation == "datetime":
        return _instant
    kind = globals().get(annotation)
    return reader(kind) if is_dataclass(kind) and isinstance(kind, type) else None


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)


def read(kind: type[T], body: Mapping[str, Any], **more: Any) -> T:
    """Reads a value from JSON. Fields that a later version of Lisa adds are ignored."""
    types = _json_types(kind)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in body.items():
        if name in types:
            allowed = types[name]
            if allowed is not None and type(value) not in allowed:
                raise TypeError(f"{name}: is not of the type {' or '.join(one.__name__ for one in allowed)}")
            values[name] = value
    for name, read_field in _readers(kind).items():  # type: ignore[arg-type]
        if values.get(name) is not None:
            values[name] = read_field(values[name])
    if "payload" in values:
        values["payload"] = values["payload"].encode()
    if "payload_base64" in body:
        values["payload"] = base64.b64decode(body["payload_base64"])
    return kind(**values, **more)


def read_delivery(kind: type[T], body: Mapping[str, Any], **more: Any) -> T:
    """Reads a delivery, which cannot be settled without its token."""
    if not isinstance(body["token"], str):
        raise TypeError("token: must be a string")
    return read(kind, body, **more)
