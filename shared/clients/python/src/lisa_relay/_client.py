"""The clients `Lisa` and `AsyncLisa`, which have the same methods."""

from __future__ import annotations

import asyncio
import builtins
import math
import re
import time
from collections.abc import Awaitable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union, cast

import httpx

from . import _flows as flows
from . import _types as types
from ._batch import AsyncBatcher, ThreadBatcher, settle_by
from ._delivery import AsyncCalls, AsyncDelivery, Calls, Delivery
from ._errors import LisaError, TransportError
from ._http import Body, open_async_client, open_client, time_limit, translated
from ._types import (
    Backfilled,
    Cancelled,
    CancelledKey,
    ChangedToken,
    DeliveryFields,
    Duration,
    Ended,
    GroupPaused,
    GroupRetired,
    Instant,
    ListOptions,
    Message,
    MessagePage,
    NewMessage,
    Outcome,
    OwnToken,
    Payload,
    Removal,
    Requeued,
    RescheduledKey,
    RotationStep,
    Schedule,
    SchedulePage,
    SchedulePaused,
    ScheduleRun,
    SendOptions,
    Sent,
    Token,
    TokenPage,
    Topic,
    TopicDetails,
    TopicList,
    TopicPaused,
    TopicRemoval,
)
from ._work import Event, Size, Worker, WorkerCalls, check_arguments

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")
BearerToken = Union[str, Path, Callable[[], str], None]

DEV = "http://127.0.0.1:7812"
MINUTE = timedelta(minutes=1)
LONG_POLL = timedelta(seconds=20)


class _Client:
    """The configuration of a client, and the calls without their transport."""

    def __init__(
        self,
        url: str = DEV,
        *,
        gateway: str | None = None,
        manager: str | None = None,
        token: BearerToken = None,
        timeout: float = 10,
        tries: int = 5,
        **http: Any,
    ) -> None:
        """Creates a client. Connections are opened when they are needed.

        `url` is that of the producer, and by default that of `lisa-manager dev`. `gateway` and `manager` are those of
        the gateway and the manager, if they differ. `token` is the bearer token, the path of its file, or a function
        that returns it; the last two are read for each request. `timeout` is in seconds, for one try, from connecting
        to the last byte of the answer. `tries` limits how often a request is sent. Further arguments are those of
        `httpx.Client`. A proxy from the environment gets only requests over `https`; `trust_env=True` or `proxy=` also
        sends it those over `http`.
        """
        gateway, manager = gateway or url, manager or url
        for name, one in (("url", url), ("gateway", gateway), ("manager", manager)):
            if not re.match(r"https?://[^/]", one):
                raise ValueError(f"{name}: {one!r} is not a URL with http or https")
        if not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
            raise ValueError(f"timeout: {timeout!r} is not a number of seconds")
        if not isinstance(tries, int) or tries < 1:
            raise ValueError(f"tries: {tries!r} is less than 1")
        if not (token is None or isinstance(token, (str, Path)) or callable(token)):
            raise TypeError("token: must be a str, a Path or a function")
        if isinstance(token, str) and not _is_token(token):
            raise ValueError("token: is empty, or has invalid characters")
        urls: dict[flows.Listener, str] = {"producer": url, "gateway": gateway, "manager": manager}
        self._urls = {listener: one.rstrip("/") for listener, one in urls.items()}
        self._token, self._timeout, self._tries, self._options = token, timeout, tries, http
        self._open()

    def _open(self) -> None:
        raise NotImplementedError

    def _request(self, request: flows.Request) -> dict[str, Any]:
        # Otherwise, a response could be compressed, and decompress to any length.
        headers: dict[str, Any] = {**request.headers, "accept-encoding": "identity"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {_read_token(self._token)}"
        return {
            "method": request.method,
            "url": self._urls[request.to] + request.path,
            "headers": headers,
            "content": request.body,
            "timeout": httpx.Timeout(self._timeout, read=self._timeout + request.wait),
            "follow_redirects": False,
        }

    def _message(self, topic: str, payload: Payload, options: Mapping[str, Any]) -> flows.Item | None:
        """Returns a message as an item of a batch; None if it needs a request of its own."""
        content, content_type = types.payload_bytes(payload)
        if len(content) > flows.MAX_BATCHED:
            return None
        options = types.options_of(options, content_type)
        return flows.Item(types.with_payload(options, payload, content))

    def _cancel(self, topic: str, message_id: str, key: str | None) -> flows.Flow[Cancelled]:
        request = flows.message_request("DELETE", topic, message_id, key)
        return (yield from flows.exchange(request, self._tries, types.reader(Cancelled)))

    def _get(self, topic: str, message_id: str, key: str | None) -> flows.Flow[Message]:
        request = flows.message_request("GET", topic, message_id, key)
        return (yield from flows.exchange(request, self._tries, types.reader(Message)))

    def _reschedule(
        self, topic: str, message_id: str, key: str | None, due: dict[str, Duration | Instant | None]
    ) -> flows.Flow[Sent]:
        request = flows.message_request("PATCH", topic, message_id, key, types.given(due))
        return (yield from flows.exchange(request, self._tries, types.reader(Sent)))

    def _list(self, topic: str, options: ListOptions) -> flows.Flow[MessagePage]:
        request = flows.list_request(topic, options)
        read = flows.reader_of_page(MessagePage, "messages", options.get("limit"))
        return (yield from flows.exchange(request, self._tries, read))

    def _cancel_key(self, topic: str, key: str) -> flows.Flow[CancelledKey]:
        request = flows.key_request("DELETE", topic, key)
        return (yield from flows.exchange(request, self._tries, types.reader(CancelledKey)))

    def _reschedule_key(
        self, topic: str, key: str, due: dict[str, Duration | Instant | None]
    ) -> flows.Flow[RescheduledKey]:
        body = types.given(due)
        if len(body) > 1:
            raise ValueError("deliver_at: cannot be combined with delay")
        request = flows.key_request("PATCH", topic, key, body)
        return (yield from flows.exchange(request, self._tries, types.reader(RescheduledKey)))

    def _requeue(self, topic: str, ids: Iterable[str], group: str) -> flows.Flow[Requeued]:
        request = flows.requeue_request(topic, ids, group)
        return (yield from flows.exchange(request, self._tries, types.reader(Requeued)))

    def _list_topics(self, prefix: str | None) -> flows.Flow[TopicList]:
        request = flows.topics_request(prefix)
        return (yield from flows.exchange(request, self._tries, types.reader(TopicList)))

    def _get_topic(self, topic: str) -> flows.Flow[TopicDetails]:
        request = flows.Request("GET", flows.path("topics", topic), to="manager")
        return (yield from flows.exchange(request, self._tries, types.reader(TopicDetails)))

    def _put_topic(
        self, topic: str, settings: Mapping[str, Any], if_match: int | None, create_only: bool
    ) -> flows.Flow[Topic]:
        request = flows.topic_request(topic, settings, if_match, create_only)
        return (yield from flows.exchange(request, self._tries, types.reader(Topic)))

    def _remove_topic(self, topic: str, how: Removal | None, if_match: int | None) -> flows.Flow[TopicRemoval]:
        request = flows.removal_request(topic, how, if_match)
        return (yield from flows.exchange(request, self._tries, types.reader(TopicRemoval)))

    def _pause_topic(self, topic: str, verb: str) -> flows.Flow[TopicPaused]:
        request = flows.Request("POST", flows.path("topics", topic, verb), to="manager")
        return (yield from flows.exchange(request, self._tries, types.reader(TopicPaused)))

    def _change_group(self, kind: type[T], topic: str, group: str, verb: str) -> flows.Flow[T]:
        request = flows.group_request(topic, group, verb)
        return (yield from flows.exchange(request, self._tries, types.reader(kind)))

    def _list_schedules(self, prefix: str | None, limit: int | None, cursor: str | None) -> flows.Flow[SchedulePage]:
        request = flows.page_request("/v1/schedules", prefix, limit, cursor)
        return (yield from flows.exchange(request, self._tries, flows.reader_of_page(SchedulePage, "schedules", limit)))

    def _get_schedule(self, schedule: str) -> flows.Flow[Schedule]:
        request = flows.schedule_request("GET", schedule)
        return (yield from flows.exchange(request, self._tries, types.reader(Schedule)))

    def _put_schedule(
        self, schedule: str, definition: Mapping[str, Any], if_match: int | None, create_only: bool
    ) -> flows.Flow[Schedule]:
        request = flows.definition_request(schedule, definition, if_match, create_only)
        return (yield from flows.exchange(request, self._tries, types.reader(Schedule)))

    def _remove_schedule(self, schedule: str, if_match: int | None) -> flows.Flow[None]:
        request = flows.with_condition(flows.schedule_request("DELETE", schedule), if_match)
        yield from flows.exchange(request, self._tries, flows.read_no_content)

    def _backfill_schedule(
        self, schedule: str, first: Instant, to: Instant | None, dry_run: bool
    ) -> flows.Flow[Backfilled]:
        request = flows.backfill_request(schedule, first, to, dry_run)
        return (yield from flows.exchange(request, self._tries, types.reader(Backfilled)))

    def _set_paused(self, schedule: str, verb: str) -> flows.Flow[SchedulePaused]:
        request = flows.schedule_request("POST", schedule, verb)
        return (yield from flows.exchange(request, self._tries, types.reader(SchedulePaused)))

    def _run_schedule(self, schedule: str) -> flows.Flow[ScheduleRun]:
        request = flows.schedule_request("POST", schedule, "run")
        # A repeat in a later second would send a second message: the caller decides.
        return (yield from flows.exchange(request, 1, types.reader(ScheduleRun)))

    def _list_tokens(self, prefix: str | None, limit: int | None, cursor: str | None) -> flows.Flow[TokenPage]:
        request = flows.page_request("/v1/tokens", prefix, limit, cursor)
        return (yield from flows.exchange(request, self._tries, flows.reader_of_page(TokenPage, "tokens", limit)))

    def _look_up_token(self, kind: type[T], *where: str) -> flows.Flow[T]:
        request = flows.Request("GET", flows.path(*where), to="manager")
        return (yield from flows.exchange(request, self._tries, types.reader(kind)))

    def _put_token(
        self, token: str, definition: Mapping[str, Any], if_match: int | None, create_only: bool
    ) -> flows.Flow[ChangedToken]:
        request = flows.token_definition_request(token, definition, if_match, create_only)
        # A repeat would not return the secret: the caller decides.
        return (yield from flows.exchange(request, 1, types.reader(ChangedToken)))

    def _rotate_token(self, token: str, step: RotationStep) -> flows.Flow[ChangedToken]:
        request = flows.rotation_request(token, step)
        return (yield from flows.exchange(request, 1, types.reader(ChangedToken)))

    def _remove_token(self, token: str, if_match: int | None) -> flows.Flow[None]:
        request = flows.Request("DELETE", flows.path("tokens", token), to="manager")
        request = flows.with_condition(request, if_match)
        yield from flows.exchange(request, self._tries, flows.read_no_content)

    def _deliver_now(self, topic: str, message_id: str, key: str | None) -> flows.Flow[Sent]:
        request = flows.message_request("POST", topic, message_id, key, verb="deliver-now")
        return (yield from flows.exchange(request, self._tries, types.reader(Sent)))

    def _pull(
        self,
        kind: type[T],
        topic: str,
        group: str,
        options: dict[str, Any],
        wait: Duration,
        calls: Calls | AsyncCalls,
    ) -> flows.Flow[list[T]]:
        where = flows.path("topics", topic, "groups", group, "pull")
        for name in ("max", "max_per_key", "max_keys"):
            if options.get(name) is not None:
                types.check_count(name, options[name])
        # The server waits at most 30 s.
        longest = min(wait.total_seconds(), 30.0) if isinstance(wait, timedelta) else 30.0
        body = types.given({**options, "wait": wait})
        request = flows.with_json("POST", where, body, "gateway", longest)
        request.limit = flows.MAX_PAYLOADS
        read = flows.reader_of_deliveries(kind, options, topic=topic, group=group, _calls=calls)
        # A repeated pull could leave the messages of the first one to their lease: the caller decides.
        return (yield from flows.exchange(request, 1, read))


class Lisa(_Client):
    """Sends, changes and pulls messages. Threads can share it."""

    def _open(self) -> None:
        self._http = open_client(self._options)
        self._sends: dict[str, ThreadBatcher[Sent]] = {}
        self._settles = self._batcher(flows.SETTLE, Ended, "gateway")
        self._extends = self._batcher(flows.EXTEND, Ended, "gateway")

    def _batcher(self, where: str, kind: type[T], to: flows.Listener) -> ThreadBatcher[T]:
        return ThreadBatcher(lambda items: self._run(flows.attempt(where, items, kind, to)), self._tries)

    def _run(self, flow: flows.Flow[T]) -> T:
        answer: flows.Reply | TransportError | None = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            answer = None
            if not isinstance(step, flows.Request):
                time.sleep(step)
                continue
            try:
                answer = self._send(step)
            except TransportError as error:
                answer = error

    def _send(self, request: flows.Request) -> flows.Reply:
        prepared = self._request(request)
        with translated(), time_limit(self._timeout + request.wait), self._http.stream(**prepared) as reply:
            body = Body(reply, request.limit)
            for part in reply.iter_raw():
                body.add(part)
            return body.end()

    def send(self, topic: str, payload: Payload, **options: Unpack[SendOptions]) -> Sent:
        """Sends a message. A failed try is repeated with the same id, so the message is stored once.

        Messages that several threads send at the same time share requests, and may be stored in any order.
        """
        item = self._message(topic, payload, options)
        if item is None:
            return self._run(flows.send(topic, payload, options, self._tries))
        sends = self._sends.get(topic)
        if sends is None:
            flows.drop_idle(self._sends)
            sends = self._sends.setdefault(topic, self._batcher(flows.send_path(topic), Sent, "producer"))
        return sends.add(item)

    def send_many(self, topic: str, messages: Iterable[NewMessage]) -> builtins.list[Sent | LisaError]:
        """Sends messages in batches. Returns a result for each, in order: its error, if it was not accepted."""
        return self._run(flows.send_many(topic, messages, self._tries))

    def get(self, topic: str, id: str, *, key: str | None = None) -> Message:
        """Returns a stored message. Raises `NotFound` if there is none, or if it has ended."""
        return self._run(self._get(topic, id, key))

    def list(self, topic: str, **options: Unpack[ListOptions]) -> MessagePage:
        """Returns a page of messages of one state or ordering key, without their payloads; by default, waiting ones.

        Pass its `next` as the `cursor` of the next call, with the same other options.
        """
        return self._run(self._list(topic, options))

    def cancel(self, topic: str, id: str, *, key: str | None = None) -> Cancelled:
        """Cancels a message. Raises `Conflict` if it is ready, in flight or in garbage."""
        return self._run(self._cancel(topic, id, key))

    def cancel_key(self, topic: str, key: str) -> CancelledKey:
        """Cancels all messages of an ordering key that are not ready, in flight or in garbage.

        The topic needs `key_index`.
        """
        return self._run(self._cancel_key(topic, key))

    def reschedule(
        self,
        topic: str,
        id: str,
        *,
        delay: Duration | None = None,
        deliver_at: Instant | None = None,
        key: str | None = None,
    ) -> Sent:
        """Reschedules a message. Raises `Conflict` if it is ready, in flight or in garbage."""
        return self._run(self._reschedule(topic, id, key, {"delay": delay, "deliver_at": deliver_at}))

    def reschedule_key(
        self, topic: str, key: str, *, delay: Duration | None = None, deliver_at: Instant | None = None
    ) -> RescheduledKey:
        """Reschedules all messages of an ordering key that are not ready, in flight or in garbage.

        The topic needs `key_index`.
        """
        return self._run(self._reschedule_key(topic, key, {"delay": delay, "deliver_at": deliver_at}))

    def deliver_now(self, topic: str, id: str, *, key: str | None = None) -> Sent:
        """Delivers a waiting message, or its next attempt, now. Raises `Conflict` if it is ready or in flight."""
        return self._run(self._deliver_now(topic, id, key))

    def requeue(self, topic: str, ids: Iterable[str], group: str = "default") -> Requeued:
        """Delivers messages of a group's garbage (dead letters) again, with their attempts reset.

        If a try has no answer, the next one may report the ids that it has requeued as missing.
        """
        return self._run(self._requeue(topic, ids, group))

    def list_topics(self, prefix: str | None = None) -> TopicList:
        """Returns all topics by name, or those whose name starts with `prefix`, with their settings."""
        return self._run(self._list_topics(prefix))

    def get_topic(self, topic: str) -> TopicDetails:
        """Returns a topic with its settings, groups and counts. Raises `NotFound` if there is none."""
        return self._run(self._get_topic(topic))

    def put_topic(
        self, topic: str, settings: Mapping[str, Any], *, if_match: int | None = None, create_only: bool = False
    ) -> Topic:
        """Creates a topic, or replaces its settings: those of `topics.NAME` in the configuration.

        A setting that is missing has the value of `topic_defaults` of the manager, and a number of shards stays. Raises
        `Conflict` if the configuration of the manager declares the topic. With `if_match`, an `epoch`, it changes only
        a topic that has this epoch. With `create_only`, it changes none. Otherwise, it raises `PreconditionFailed`,
        unless the topic has these settings already.
        """
        return self._run(self._put_topic(topic, settings, if_match, create_only))

    def remove_topic(self, topic: str, how: Removal | None = None, *, if_match: int | None = None) -> TopicRemoval:
        """Removes a topic: with `how="drain"` once it has delivered its messages, with `"force"` together with them.

        From then on, it accepts no new messages. Without `how`, raises `Conflict` with the code `not_empty` if it has
        messages. Raises `Conflict` if the configuration of the manager declares the topic, and `NotFound` if there is
        none, also if an earlier try without an answer has removed it. With `if_match`, an `epoch`, raises
        `PreconditionFailed` if the topic has another one, unless it is being removed in this way already.
        """
        return self._run(self._remove_topic(topic, how, if_match))

    def pause_topic(self, topic: str) -> TopicPaused:
        """Pauses a topic: due messages collect in the backlog of each group. Raises `NotFound` if there is none."""
        return self._run(self._pause_topic(topic, "pause"))

    def resume_topic(self, topic: str) -> TopicPaused:
        """Resumes a paused topic. Raises `NotFound` if there is none."""
        return self._run(self._pause_topic(topic, "resume"))

    def pause_group(self, topic: str, group: str) -> GroupPaused:
        """Pauses a group: messages that become due for it collect in its backlog. Other groups are not affected.

        Raises `NotFound` if there is no such group.
        """
        return self._run(self._change_group(GroupPaused, topic, group, "pause"))

    def resume_group(self, topic: str, group: str) -> GroupPaused:
        """Resumes a paused group. Raises `NotFound` if there is no such group."""
        return self._run(self._change_group(GroupPaused, topic, group, "resume"))

    def drain_group(self, topic: str, group: str) -> GroupRetired:
        """Drains a group: it gets no new messages, and is removed within a minute after its last one is finished.

        If the configuration of the manager does not declare the topic, its settings then do not name the group any
        more. Raises `NotFound` if there is no such group, also if it is gone since an earlier try without an answer.
        """
        return self._run(self._change_group(GroupRetired, topic, group, "drain"))

    def drop_group(self, topic: str, group: str) -> GroupRetired:
        """Drops the messages of a group, which cannot be undone, and removes it.

        It drops messages for up to 2 s, and a manager begins to drop those that are left within a minute. For the
        settings of the topic and the errors, see `drain_group`.
        """
        return self._run(self._change_group(GroupRetired, topic, group, "drop"))

    def keep_group(self, topic: str, group: str) -> GroupRetired:
        """Cancels a drain or drop: the group gets messages again, except those dropped or due in the meantime.

        If the configuration of the manager does not declare the topic, its settings name the group again. Raises
        `NotFound` if there is no such group.
        """
        return self._run(self._change_group(GroupRetired, topic, group, "keep"))

    def list_schedules(
        self, prefix: str | None = None, *, limit: int | None = None, cursor: str | None = None
    ) -> SchedulePage:
        """Returns a page of schedules by name, or of those whose name starts with `prefix`, with their progress.

        A page has up to `limit` schedules, 1 to 1000 and by default 100. Pass its `next` as the `cursor` of the next
        call, with the same other options.
        """
        return self._run(self._list_schedules(prefix, limit, cursor))

    def get_schedule(self, schedule: str) -> Schedule:
        """Returns a schedule with its definition and its next times. Raises `NotFound` if there is none."""
        return self._run(self._get_schedule(schedule))

    def put_schedule(
        self, schedule: str, definition: Mapping[str, Any], *, if_match: int | None = None, create_only: bool = False
    ) -> Schedule:
        """Creates a schedule, or replaces its definition: the fields of `schedules.NAME` in the configuration.

        At each time of its `cron`, the schedule sends a message to its `topic`. A field that is missing has its
        default. Raises `NotFound` if there is no such topic, and `Conflict` if the configuration of the manager
        declares the schedule. With `if_match`, it changes only a schedule that has this `version`. With `create_only`,
        it changes none. Otherwise, it raises `PreconditionFailed`, unless the schedule has this definition already.
        """
        return self._run(self._put_schedule(schedule, definition, if_match, create_only))

    def remove_schedule(self, schedule: str, *, if_match: int | None = None) -> None:
        """Removes a schedule. The messages that it has sent stay.

        Raises `Conflict` if the configuration of the manager declares the schedule, and `NotFound` if there is none,
        also if an earlier try without an answer has removed it. With `if_match`, a `version`, raises
        `PreconditionFailed` if the schedule has another one.
        """
        self._run(self._remove_schedule(schedule, if_match))

    def backfill_schedule(
        self, schedule: str, from_: Instant, to: Instant | None = None, *, dry_run: bool = False
    ) -> Backfilled:
        """Sends a message, due now, for each time of a schedule from `from_` until before `to`, by default now.

        A time for which there is a message already, within the `dedup_window` of the topic, is skipped. A call sends up
        to 1,000 messages: pass its `next` as `from_` of the next call. With `dry_run`, it counts the times, and sends
        nothing. Raises `NotFound` if there is no such schedule, or if its topic does not exist, and `Full` if the topic
        is full.
        """
        return self._run(self._backfill_schedule(schedule, from_, to, dry_run))

    def pause_schedule(self, schedule: str) -> SchedulePaused:
        """Pauses a schedule: it sends nothing until it is resumed. Raises `NotFound` if there is none."""
        return self._run(self._set_paused(schedule, "pause"))

    def resume_schedule(self, schedule: str) -> SchedulePaused:
        """Resumes a paused schedule, from now on: it does not send for the times that have passed.

        Raises `NotFound` if there is none.
        """
        return self._run(self._set_paused(schedule, "resume"))

    def run_schedule(self, schedule: str) -> ScheduleRun:
        """Sends a message of a schedule now, also if it is paused. Two runs in the same second send one message.

        A failed run is not repeated, because it may have sent the message, and a later second has another one. Raises
        `NotFound` if there is no such schedule, or if its topic does not exist.
        """
        return self._run(self._run_schedule(schedule))

    def own_token(self) -> OwnToken:
        """Returns the token of the client: its scopes, what it reaches, its quotas and what is used of them.

        Needs a token with any scope. Raises `NotFound` if no tokens are configured.
        """
        return self._run(self._look_up_token(OwnToken, "token"))

    def list_tokens(
        self, prefix: str | None = None, *, limit: int | None = None, cursor: str | None = None
    ) -> TokenPage:
        """Returns a page of tokens by name, or of those whose name starts with `prefix`, without their secrets.

        A page has up to `limit` tokens, 1 to 1000 and by default 100. Pass its `next` as the `cursor` of the next call,
        with the same other options. Needs the scope `tokens`.
        """
        return self._run(self._list_tokens(prefix, limit, cursor))

    def get_token(self, token: str) -> Token:
        """Returns a token without its secret. Needs the scope `tokens`. Raises `NotFound` if there is none."""
        return self._run(self._look_up_token(Token, "tokens", token))

    def put_token(
        self, token: str, definition: Mapping[str, Any], *, if_match: int | None = None, create_only: bool = False
    ) -> ChangedToken:
        """Creates a token, or replaces its permissions. Its fields are those of `PUT /v1/tokens/{token}`.

        The manager generates the `secret` of a new token, unless there is a `sha256`, and only this call returns it.
        A failed call is not repeated, because a repeat would not return the secret: rotate the token then. Needs the
        scope `tokens`. Raises `Conflict` if the configuration of the manager declares the token. With `if_match`, it
        changes only a token that has this `version`. With `create_only`, it changes none. Otherwise, it raises
        `PreconditionFailed`, unless the token is already as the definition says.
        """
        return self._run(self._put_token(token, definition, if_match, create_only))

    def rotate_token(self, token: str, step: RotationStep = "begin") -> ChangedToken:
        """Replaces the secret of a token: `begin` returns a new one, and the previous one is accepted as well.

        `finish` accepts only the new secret, and `cancel` only the previous one. A failed call is not repeated. If the
        new secret is lost, cancel and begin again. Raises `Conflict` if a rotation has begun already, or if the
        configuration of the manager declares the token, and `NotFound` if there is none.
        """
        return self._run(self._rotate_token(token, step))

    def remove_token(self, token: str, *, if_match: int | None = None) -> None:
        """Removes a token: no process accepts it a few seconds later.

        Raises `Conflict` if the configuration of the manager declares the token, and `NotFound` if there is none, also
        if an earlier try without an answer has removed it. With `if_match`, a `version`, raises `PreconditionFailed` if
        the token has another one.
        """
        self._run(self._remove_token(token, if_match))

    def pull(
        self,
        topic: str,
        group: str = "default",
        *,
        max: int = 1,
        max_per_key: int = 1,
        max_keys: int | None = None,
        wait: Duration = LONG_POLL,
        lease: Duration | None = None,
        consumer: str | None = None,
    ) -> builtins.list[Delivery]:
        """Pulls up to `max` messages. Waits for the first one, up to `wait` (30 s at most).

        Up to `max_per_key` of them have the same ordering key, in its order. The messages behind them wait until all
        are settled. They have up to `max_keys` keys, where one without a key counts as a key of its own. All three are
        1 to 200. A failed pull is not repeated.
        """
        options = {
            "max": max,
            "max_per_key": max_per_key,
            "max_keys": max_keys,
            "lease": lease,
            "consumer": consumer,
        }
        return self._run(self._pull(Delivery, topic, group, options, wait, self))

    def settle(self, delivery: DeliveryFields | str, outcome: Outcome) -> Ended:
        """Settles a delivery, or the delivery with this token. Raises `Stale` if its lease was lost."""
        try:
            ended = self._settles.add(flows.settle_item((delivery, outcome)))
        except LisaError as error:
            flows.note_settled(delivery, error)
            raise
        flows.note_settled(delivery, ended)
        return ended

    def extend(self, delivery: DeliveryFields | str, lease: Duration | None = None) -> Ended:
        """Replaces the lease of a delivery with a new one that starts now. Raises `Stale` if it was lost."""
        return flows.note_extended(delivery, self._extends.add(flows.extend_item(delivery, lease)))

    def settle_many(self, items: Iterable[tuple[DeliveryFields | str, Outcome]]) -> builtins.list[Ended | LisaError]:
        """Settles deliveries in batches. Returns a result for each, in order: its error, if it was not settled."""
        return self._run(flows.settle_many(items, self._tries))

    def work(
        self,
        topic: str,
        handler: Callable[[Delivery], Outcome | None],
        group: str = "default",
        *,
        concurrency: int = 1,
        max_per_key: int = 1,
        lease: Duration = MINUTE,
        wait: Duration = LONG_POLL,
        consumer: str | None = None,
        stop: Event | None = None,
    ) -> None:
        """Pulls messages and handles them in threads, until `stop` is set or the process gets SIGINT or SIGTERM.

        The message is acknowledged when the handler returns, and retried when it raises an exception. It can also
        return `Retry`, `Defer` or `Reject`, or settle the delivery itself. Leases are extended while handlers run. Up
        to `max_per_key` messages of an ordering key (1 to 200) are pulled together and handled one after another, in
        order. If one is not acknowledged, those behind it are delivered again after it. At a stop, waits for the
        running handlers. Raises errors that a retry cannot fix, such as `Unauthorized`. Raises
        `ValueError` for wrong arguments, before the first pull.
        """
        check_arguments(topic, handler, group, concurrency, max_per_key, lease, wait, consumer, stop, in_threads=True)

        def run(delivery: Delivery) -> Outcome | None:
            try:
                return handler(delivery)
            except StopIteration as error:
                # asyncio cannot pass it on, so the handler would never end.
                raise RuntimeError(f"the handler raised {error!r}") from error

        async def main() -> None:
            loop = asyncio.get_running_loop()
            threads = ThreadPoolExecutor(concurrency, thread_name_prefix=f"lisa-{topic}")

            async def handle(delivery: AsyncDelivery) -> Outcome | None:
                same = Delivery(**{**vars(delivery), "_calls": self})
                return await loop.run_in_executor(threads, run, same)

            options = {
                "gateway": self._urls["gateway"],
                "token": self._token,
                "timeout": self._timeout,
                "tries": self._tries,
                **self._options,
            }
            async with AsyncLisa(self._urls["producer"], **options) as lisa:
                try:
                    await lisa.work(
                        topic,
                        handle,
                        group,
                        concurrency=concurrency,
                        max_per_key=max_per_key,
                        lease=lease,
                        wait=wait,
                        consumer=consumer,
                        stop=stop,
                    )
                finally:
                    threads.shutdown()

        asyncio.run(main())

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


class AsyncLisa(_Client):
    """Sends, changes and pulls messages, for asyncio. Its methods are those of `Lisa`."""

    def _open(self) -> None:
        self._http = open_async_client(self._options)
        self._sends: dict[str, AsyncBatcher[Sent]] = {}
        self._settles = self._batcher(flows.SETTLE, Ended, "gateway")
        self._extends = self._batcher(flows.EXTEND, Ended, "gateway")

    def _batcher(self, where: str, kind: type[T], to: flows.Listener) -> AsyncBatcher[T]:
        return AsyncBatcher(lambda items: self._run(flows.attempt(where, items, kind, to)), self._tries)

    async def _run(self, flow: flows.Flow[T]) -> T:
        answer: flows.Reply | TransportError | None = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            answer = None
            if not isinstance(step, flows.Request):
                await asyncio.sleep(step)
                continue
            try:
                with translated():
                    answer = await asyncio.wait_for(self._send(step), self._timeout + step.wait)
            except TransportError as error:
                answer = error

    async def _send(self, request: flows.Request) -> flows.Reply:
        async with self._http.stream(**self._request(request)) as reply:
            body = Body(reply, request.limit)
            async for part in reply.aiter_raw():
                body.add(part)
            return body.end()

    async def send(self, topic: str, payload: Payload, **options: Unpack[SendOptions]) -> Sent:
        """Sends a message. A failed try is repeated with the same id, so the message is stored once.

        Messages that several tasks send at the same time share requests, and may be stored in any order.
        """
        item = self._message(topic, payload, options)
        if item is None:
            return await self._run(flows.send(topic, payload, options, self._tries))
        sends = self._sends.get(topic)
        if sends is None:
            flows.drop_idle(self._sends)
            sends = self._sends.setdefault(topic, self._batcher(flows.send_path(topic), Sent, "producer"))
        return await sends.add(item)

    async def send_many(self, topic: str, messages: Iterable[NewMessage]) -> builtins.list[Sent | LisaError]:
        """Sends messages in batches. Returns a result for each, in order: its error, if it was not accepted."""
        return await self._run(flows.send_many(topic, messages, self._tries))

    async def get(self, topic: str, id: str, *, key: str | None = None) -> Message:
        """Returns a stored message. Raises `NotFound` if there is none, or if it has ended."""
        return await self._run(self._get(topic, id, key))

    async def list(self, topic: str, **options: Unpack[ListOptions]) -> MessagePage:
        """Returns a page of messages of one state or ordering key, without their payloads; by default, waiting ones.

        Pass its `next` as the `cursor` of the next call, with the same other options.
        """
        return await self._run(self._list(topic, options))

    async def cancel(self, topic: str, id: str, *, key: str | None = None) -> Cancelled:
        """Cancels a message. Raises `Conflict` if it is ready, in flight or in garbage."""
        return await self._run(self._cancel(topic, id, key))

    async def cancel_key(self, topic: str, key: str) -> CancelledKey:
        """Cancels all messages of an ordering key that are not ready, in flight or in garbage.

        The topic needs `key_index`.
        """
        return await self._run(self._cancel_key(topic, key))

    async def reschedule(
        self,
        topic: str,
        id: str,
        *,
        delay: Duration | None = None,
        deliver_at: Instant | None = None,
        key: str | None = None,
    ) -> Sent:
        """Reschedules a message. Raises `Conflict` if it is ready, in flight or in garbage."""
        return await self._run(self._reschedule(topic, id, key, {"delay": delay, "deliver_at": deliver_at}))

    async def reschedule_key(
        self, topic: str, key: str, *, delay: Duration | None = None, deliver_at: Instant | None = None
    ) -> RescheduledKey:
        """Reschedules all messages of an ordering key that are not ready, in flight or in garbage.

        The topic needs `key_index`.
        """
        return await self._run(self._reschedule_key(topic, key, {"delay": delay, "deliver_at": deliver_at}))

    async def deliver_now(self, topic: str, id: str, *, key: str | None = None) -> Sent:
        """Delivers a waiting message, or its next attempt, now. Raises `Conflict` if it is ready or in flight."""
        return await self._run(self._deliver_now(topic, id, key))

    async def requeue(self, topic: str, ids: Iterable[str], group: str = "default") -> Requeued:
        """Delivers messages of a group's garbage (dead letters) again, with their attempts reset.

        If a try has no answer, the next one may report the ids that it has requeued as missing.
        """
        return await self._run(self._requeue(topic, ids, group))

    async def list_topics(self, prefix: str | None = None) -> TopicList:
        """Returns all topics by name, or those whose name starts with `prefix`, with their settings."""
        return await self._run(self._list_topics(prefix))

    async def get_topic(self, topic: str) -> TopicDetails:
        """Returns a topic with its settings, groups and counts. Raises `NotFound` if there is none."""
        return await self._run(self._get_topic(topic))

    async def put_topic(
        self, topic: str, settings: Mapping[str, Any], *, if_match: int | None = None, create_only: bool = False
    ) -> Topic:
        """Creates a topic, or replaces its settings: those of `topics.NAME` in the configuration.

        A setting that is missing has the value of `topic_defaults` of the manager, and a number of shards stays. Raises
        `Conflict` if the configuration of the manager declares the topic. With `if_match`, an `epoch`, it changes only
        a topic that has this epoch. With `create_only`, it changes none. Otherwise, it raises `PreconditionFailed`,
        unless the topic has these settings already.
        """
        return await self._run(self._put_topic(topic, settings, if_match, create_only))

    async def remove_topic(
        self, topic: str, how: Removal | None = None, *, if_match: int | None = None
    ) -> TopicRemoval:
        """Removes a topic: with `how="drain"` once it has delivered its messages, with `"force"` together with them.

        From then on, it accepts no new messages. Without `how`, raises `Conflict` with the code `not_empty` if it has
        messages. Raises `Conflict` if the configuration of the manager declares the topic, and `NotFound` if there is
        none, also if an earlier try without an answer has removed it. With `if_match`, an `epoch`, raises
        `PreconditionFailed` if the topic has another one, unless it is being removed in this way already.
        """
        return await self._run(self._remove_topic(topic, how, if_match))

    async def pause_topic(self, topic: str) -> TopicPaused:
        """Pauses a topic: due messages collect in the backlog of each group. Raises `NotFound` if there is none."""
        return await self._run(self._pause_topic(topic, "pause"))

    async def resume_topic(self, topic: str) -> TopicPaused:
        """Resumes a paused topic. Raises `NotFound` if there is none."""
        return await self._run(self._pause_topic(topic, "resume"))

    async def pause_group(self, topic: str, group: str) -> GroupPaused:
        """Pauses a group: messages that become due for it collect in its backlog. Other groups are not affected.

        Raises `NotFound` if there is no such group.
        """
        return await self._run(self._change_group(GroupPaused, topic, group, "pause"))

    async def resume_group(self, topic: str, group: str) -> GroupPaused:
        """Resumes a paused group. Raises `NotFound` if there is no such group."""
        return await self._run(self._change_group(GroupPaused, topic, group, "resume"))

    async def drain_group(self, topic: str, group: str) -> GroupRetired:
        """Drains a group: it gets no new messages, and is removed within a minute after its last one is finished.

        If the configuration of the manager does not declare the topic, its settings then do not name the group any
        more. Raises `NotFound` if there is no such group, also if it is gone since an earlier try without an answer.
        """
        return await self._run(self._change_group(GroupRetired, topic, group, "drain"))

    async def drop_group(self, topic: str, group: str) -> GroupRetired:
        """Drops the messages of a group, which cannot be undone, and removes it.

        It drops messages for up to 2 s, and a manager begins to drop those that are left within a minute. For the
        settings of the topic and the errors, see `drain_group`.
        """
        return await self._run(self._change_group(GroupRetired, topic, group, "drop"))

    async def keep_group(self, topic: str, group: str) -> GroupRetired:
        """Cancels a drain or drop: the group gets messages again, except those dropped or due in the meantime.

        If the configuration of the manager does not declare the topic, its settings name the group again. Raises
        `NotFound` if there is no such group.
        """
        return await self._run(self._change_group(GroupRetired, topic, group, "keep"))

    async def list_schedules(
        self, prefix: str | None = None, *, limit: int | None = None, cursor: str | None = None
    ) -> SchedulePage:
        """Returns a page of schedules by name, or of those whose name starts with `prefix`, with their progress.

        A page has up to `limit` schedules, 1 to 1000 and by default 100. Pass its `next` as the `cursor` of the next
        call, with the same other options.
        """
        return await self._run(self._list_schedules(prefix, limit, cursor))

    async def get_schedule(self, schedule: str) -> Schedule:
        """Returns a schedule with its definition and its next times. Raises `NotFound` if there is none."""
        return await self._run(self._get_schedule(schedule))

    async def put_schedule(
        self, schedule: str, definition: Mapping[str, Any], *, if_match: int | None = None, create_only: bool = False
    ) -> Schedule:
        """Creates a schedule, or replaces its definition: the fields of `schedules.NAME` in the configuration.

        At each time of its `cron`, the schedule sends a message to its `topic`. A field that is missing has its
        default. Raises `NotFound` if there is no such topic, and `Conflict` if the configuration of the manager
        declares the schedule. With `if_match`, it changes only a schedule that has this `version`. With `create_only`,
        it changes none. Otherwise, it raises `PreconditionFailed`, unless the schedule has this definition already.
        """
        return await self._run(self._put_schedule(schedule, definition, if_match, create_only))

    async def remove_schedule(self, schedule: str, *, if_match: int | None = None) -> None:
        """Removes a schedule. The messages that it has sent stay.

        Raises `Conflict` if the configuration of the manager declares the schedule, and `NotFound` if there is none,
        also if an earlier try without an answer has removed it. With `if_match`, a `version`, raises
        `PreconditionFailed` if the schedule has another one.
        """
        await self._run(self._remove_schedule(schedule, if_match))

    async def backfill_schedule(
        self, schedule: str, from_: Instant, to: Instant | None = None, *, dry_run: bool = False
    ) -> Backfilled:
        """Sends a message, due now, for each time of a schedule from `from_` until before `to`, by default now.

        A time for which there is a message already, within the `dedup_window` of the topic, is skipped. A call sends up
        to 1,000 messages: pass its `next` as `from_` of the next call. With `dry_run`, it counts the times, and sends
        nothing. Raises `NotFound` if there is no such schedule, or if its topic does not exist, and `Full` if the topic
        is full.
        """
        return await self._run(self._backfill_schedule(schedule, from_, to, dry_run))

    async def pause_schedule(self, schedule: str) -> SchedulePaused:
        """Pauses a schedule: it sends nothing until it is resumed. Raises `NotFound` if there is none."""
        return await self._run(self._set_paused(schedule, "pause"))

    async def resume_schedule(self, schedule: str) -> SchedulePaused:
        """Resumes a paused schedule, from now on: it does not send for the times that have passed.

        Raises `NotFound` if there is none.
        """
        return await self._run(self._set_paused(schedule, "resume"))

    async def run_schedule(self, schedule: str) -> ScheduleRun:
        """Sends a message of a schedule now, also if it is paused. Two runs in the same second send one message.

        A failed run is not repeated, because it may have sent the message, and a later second has another one. Raises
        `NotFound` if there is no such schedule, or if its topic does not exist.
        """
        return await self._run(self._run_schedule(schedule))

    async def own_token(self) -> OwnToken:
        """Returns the token of the client: its scopes, what it reaches, its quotas and what is used of them.

        Needs a token with any scope. Raises `NotFound` if no tokens are configured.
        """
        return await self._run(self._look_up_token(OwnToken, "token"))

    async def list_tokens(
        self, prefix: str | None = None, *, limit: int | None = None, cursor: str | None = None
    ) -> TokenPage:
        """Returns a page of tokens by name, or of those whose name starts with `prefix`, without their secrets.

        A page has up to `limit` tokens, 1 to 1000 and by default 100. Pass its `next` as the `cursor` of the next call,
        with the same other options. Needs the scope `tokens`.
        """
        return await self._run(self._list_tokens(prefix, limit, cursor))

    async def get_token(self, token: str) -> Token:
        """Returns a token without its secret. Needs the scope `tokens`. Raises `NotFound` if there is none."""
        return await self._run(self._look_up_token(Token, "tokens", token))

    async def put_token(
        self, token: str, definition: Mapping[str, Any], *, if_match: int | None = None, create_only: bool = False
    ) -> ChangedToken:
        """Creates a token, or replaces its permissions. Its fields are those of `PUT /v1/tokens/{token}`.

        The manager generates the `secret` of a new token, unless there is a `sha256`, and only this call returns it.
        A failed call is not repeated, because a repeat would not return the secret: rotate the token then. Needs the
        scope `tokens`. Raises `Conflict` if the configuration of the manager declares the token. With `if_match`, it
        changes only a token that has this `version`. With `create_only`, it changes none. Otherwise, it raises
        `PreconditionFailed`, unless the token is already as the definition says.
        """
        return await self._run(self._put_token(token, definition, if_match, create_only))

    async def rotate_token(self, token: str, step: RotationStep = "begin") -> ChangedToken:
        """Replaces the secret of a token: `begin` returns a new one, and the previous one is accepted as well.

        `finish` accepts only the new secret, and `cancel` only the previous one. A failed call is not repeated. If the
        new secret is lost, cancel and begin again. Raises `Conflict` if a rotation has begun already, or if the
        configuration of the manager declares the token, and `NotFound` if there is none.
        """
        return await self._run(self._rotate_token(token, step))

    async def remove_token(self, token: str, *, if_match: int | None = None) -> None:
        """Removes a token: no process accepts it a few seconds later.

        Raises `Conflict` if the configuration of the manager declares the token, and `NotFound` if there is none, also
        if an earlier try without an answer has removed it. With `if_match`, a `version`, raises `PreconditionFailed` if
        the token has another one.
        """
        await self._run(self._remove_token(token, if_match))

    async def pull(
        self,
        topic: str,
        group: str = "default",
        *,
        max: int = 1,
        max_per_key: int = 1,
        max_keys: int | None = None,
        wait: Duration = LONG_POLL,
        lease: Duration | None = None,
        consumer: str | None = None,
    ) -> builtins.list[AsyncDelivery]:
        """Pulls up to `max` messages. Waits for the first one, up to `wait` (30 s at most).

        Up to `max_per_key` of them have the same ordering key, in its order. The messages behind them wait until all
        are settled. They have up to `max_keys` keys, where one without a key counts as a key of its own. All three are
        1 to 200. A failed pull is not repeated.
        """
        options = {
            "max": max,
            "max_per_key": max_per_key,
            "max_keys": max_keys,
            "lease": lease,
            "consumer": consumer,
        }
        return await self._run(self._pull(AsyncDelivery, topic, group, options, wait, self))

    async def settle(self, delivery: DeliveryFields | str, outcome: Outcome) -> Ended:
        """Settles a delivery, or the delivery with this token. Raises `Stale` if its lease was lost."""
        return await settle_by(self._settles, delivery, outcome)

    async def extend(self, delivery: DeliveryFields | str, lease: Duration | None = None) -> Ended:
        """Replaces the lease of a delivery with a new one that starts now. Raises `Stale` if it was lost."""
        return flows.note_extended(delivery, await self._extends.add(flows.extend_item(delivery, lease)))

    async def settle_many(
        self, items: Iterable[tuple[DeliveryFields | str, Outcome]]
    ) -> builtins.list[Ended | LisaError]:
        """Settles deliveries in batches. Returns a result for each, in order: its error, if it was not settled."""
        return await self._run(flows.settle_many(items, self._tries))

    async def work(
        self,
        topic: str,
        handler: Callable[[AsyncDelivery], Awaitable[Outcome | None]],
        group: str = "default",
        *,
        concurrency: int = 1,
        max_per_key: int = 1,
        lease: Duration = MINUTE,
        wait: Duration = LONG_POLL,
        consumer: str | None = None,
        stop: Event | None = None,
    ) -> None:
        """Pulls messages and handles them in tasks, until `stop` is set or the process gets SIGINT or SIGTERM.

        It does what `Lisa.work` does. A handler that has lost its lease is cancelled, because another worker may have
        the message. If the call itself is cancelled, it cancels its handlers and defers their messages, so that they
        are delivered again at once.
        """
        check_arguments(topic, handler, group, concurrency, max_per_key, lease, wait, consumer, stop, in_threads=False)

        options = {"lease": lease, "consumer": consumer}

        async def pull(size: Size, calls: AsyncCalls) -> list[AsyncDelivery]:
            return await self._run(self._pull(AsyncDelivery, topic, group, {**options, **size}, wait, calls))

        async def settle(items: list[flows.Item]) -> flows.Answer[Ended]:
            return await self._run(flows.attempt(flows.SETTLE, items, Ended, "gateway"))

        async def settle_and_pull(
            items: list[flows.Item], size: Size, calls: AsyncCalls
        ) -> flows.SettledAndPulled[AsyncDelivery] | LisaError:
            read = flows.reader_of_deliveries(AsyncDelivery, size, topic=topic, group=group, _calls=calls)
            return await self._run(flows.settle_and_pull(topic, group, {**options, **size}, items, read))

        calls = WorkerCalls(pull, settle, settle_and_pull, self.extend, self._tries)
        await Worker(calls, handler, concurrency, max_per_key, lease, stop).run()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()


def _is_token(text: str) -> bool:
    return re.fullmatch("[!-~]+", text.strip()) is not None


def _read_token(token: str | Path | Callable[[], str]) -> str:
    """Reads the token. While it is rotated, its file may be missing or empty for a moment."""
    try:
        text = token.read_text() if isinstance(token, Path) else token if isinstance(token, str) else token()
        if not _is_token(text):
            raise ValueError("it is empty, or has invalid characters")
    except Exception as error:
        failed = TransportError(f"cannot read the token: {error}")
        failed.in_doubt = False
        raise failed from error
    return text.strip()
