"""Runs the client against a relay. `LISA_URL` is that of `lisa-manager dev`; tests/clients/run.sh sets everything."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import signal
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Callable
from uuid import UUID

import httpx
import pytest
from support import HOUR, URL, WAIT, eventually, forward, serve

import lisa_relay as lr
from lisa_relay import AsyncDelivery, AsyncLisa, Delivery, Lisa

WITH_TOKENS = os.environ["LISA_URL_WITH_TOKENS"]
TOKEN = os.environ["LISA_TOKEN"]
HOOK_PORT = int(os.environ["LISA_HOOK_PORT"])
SECRET = os.environ["LISA_HOOK_SECRET"]
BYTES = bytes(range(256))


def losing(*lost: int) -> Callable[[int, Any, bytes], Any]:
    """Passes requests on, but drops the answers with these numbers."""

    def answer(count: int, handler: Any, body: bytes) -> Any:
        result = forward(handler, body)
        return None if count in lost else result

    return answer


def test_every_byte_is_kept(lisa: Lisa, topic: str) -> None:
    sent = lisa.send(topic, BYTES, delay=HOUR, key="straße 7", headers={"X-Mark": "a b"}, priority=-3)
    assert sent.outcome == "waiting" and UUID(sent.id).version == 7
    assert sent.due_at is not None and sent.due_at.tzinfo is timezone.utc
    message = lisa.get(topic, sent.id, key="straße 7")
    assert (message.payload, message.state, message.key, message.priority) == (BYTES, "waiting", "straße 7", -3)
    assert message.headers == {"content-type": "application/octet-stream", "x-mark": "a b"}
    assert message.groups[0].group and message.due_at == sent.due_at
    assert lisa.cancel(topic, sent.id, key="straße 7").payload == BYTES
    lisa.send(topic, BYTES, key="straße 7")
    delivery = lisa.pull(topic, wait=WAIT)[0]
    assert (delivery.payload, delivery.topic, delivery.group, delivery.attempt) == (BYTES, topic, "default", 1)
    assert delivery.token not in repr(delivery) and delivery.key == "straße 7"
    delivery.ack()


@pytest.mark.parametrize(
    ("payload", "kept", "content_type"),
    [
        ("text ü\n", "text ü\n".encode(), "text/plain; charset=utf-8"),
        ("", b"", "text/plain; charset=utf-8"),
        ({"ü": [1, None]}, '{"ü":[1,null]}'.encode(), "application/json"),
        (7, b"7", "application/json"),
        (BYTES, BYTES, "application/octet-stream"),
    ],
)
def test_send_and_send_many_store_the_same(
    lisa: Lisa, topic: str, payload: Any, kept: bytes, content_type: str
) -> None:
    options: lr.SendOptions = {"delay": "1h", "max_attempts": 3, "retry": {"kind": "fixed", "delay": HOUR}, "key": "k"}
    one = lisa.send(topic, payload, **options)
    (other,) = lisa.send_many(topic, [{"payload": payload, **options}])
    assert isinstance(other, lr.Sent)
    for id in (one.id, other.id):
        message = lisa.get(topic, id)
        assert (message.payload, message.headers) == (kept, {"content-type": content_type})
        assert (message.max_attempts, message.key) == (3, "k") and message.retry is not None
        assert message.retry["kind"] == "fixed"


def test_a_repeated_id_is_a_duplicate(lisa: Lisa, topic: str) -> None:
    assert lisa.send(topic, "x", id="order-7", delay=HOUR).outcome == "waiting"
    assert lisa.send(topic, "y", id="order-7", delay=HOUR).outcome == "duplicate"
    assert lisa.get(topic, "order-7").text() == "x"


def test_cancel_and_reschedule(lisa: Lisa, topic: str) -> None:
    now = datetime.now(timezone(timedelta(hours=2)))
    at = now.replace(microsecond=678000) + timedelta(days=30)
    id = lisa.send(topic, "x", deliver_at=at).id
    assert lisa.get(topic, id).due_at == at
    assert lisa.reschedule(topic, id, deliver_at=at + HOUR).due_at == at + HOUR
    assert lisa.cancel(topic, id).text() == "x"
    assert lisa.cancel(topic, id).payload == b""
    with pytest.raises(lr.NotFound) as error:
        lisa.get(topic, id)
    assert (error.value.status, error.value.code, error.value.ended) == (404, "not_found", "cancelled")
    with pytest.raises(lr.Conflict) as conflict:
        lisa.send(topic, "x", id=id)
    assert (conflict.value.code, conflict.value.id) == ("cancelled", id)


def test_a_message_is_delivered_now_and_replaced(lisa: Lisa, topic: str) -> None:
    first = lisa.send(topic, "first", delay=HOUR)
    second = lisa.send(topic, "second", delay=HOUR, replace=first.id)
    assert lisa.deliver_now(topic, second.id).outcome == "rescheduled"
    (delivery,) = lisa.pull(topic, wait=WAIT)
    assert (delivery.id, delivery.text()) == (second.id, "second")
    with pytest.raises(lr.Conflict) as error:
        lisa.deliver_now(topic, second.id)
    assert error.value.code == "in_flight"


def test_errors_name_the_field(lisa: Lisa, topic: str) -> None:
    with pytest.raises(lr.Invalid) as error:
        lisa.send(topic, "x", delay="soon")
    problem = error.value
    assert (problem.status, problem.code, problem.errors[0].field) == (422, "invalid", "delay")
    assert problem.type == "urn:lisa:problem:invalid" and problem.title and problem.detail
    wrong: list[dict[str, Any]] = [
        {"delay": 30},
        {"deliver_at": 1.5},
        {"deliver_at": datetime(2040, 1, 1)},
        {"dealy": "1s"},
    ]
    for options in wrong:
        with pytest.raises((TypeError, ValueError), match=next(iter(options))):
            lisa.send(topic, "x", **options)
    for headers in ({"a b": "c"}, {"a": "b\nc"}):
        with pytest.raises(lr.Invalid, match=r"headers\.a"):
            lisa.send(topic, "x", headers=headers)


def test_a_batch_has_a_result_for_each_message(lisa: Lisa, topic: str) -> None:
    messages: list[lr.NewMessage] = [{"payload": n, "delay": "1h"} for n in range(2500)]
    messages[1]["delay"] = "soon"
    results = lisa.send_many(topic, messages)
    assert len(results) == 2500 and isinstance(results[1], lr.Invalid)
    assert results[1].errors[0].field == "delay"
    assert all(isinstance(result, lr.Sent) for index, result in enumerate(results) if index != 1)
    last = results[-1]
    assert isinstance(last, lr.Sent) and lisa.get(topic, last.id).json() == 2499
    assert lisa.send_many(topic, []) == []


def test_a_wrong_message_of_a_batch_is_raised_before_any_is_sent() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"delay": "1h"}, "message 1500: payload: is missing"),
        ({"payload": "x", "delay": timedelta(seconds=-5)}, "message 1500: delay: -5.0 s is negative"),
        ({"payload": "\ud800"}, "message 1500: .*surrogates"),
        ({"payload": "x", "dealy": "1h"}, "message 1500: unknown option 'dealy'"),
    ]
    with serve(lambda *_: None) as server, Lisa(server.url, tries=1) as lisa:
        for one, error in wrong:
            messages: list[Any] = [*({"payload": n} for n in range(1500)), one]
            with pytest.raises((TypeError, ValueError), match=error):
                lisa.send_many("t", messages)
        with pytest.raises(ValueError, match=r"delay: -5.0 s is negative"):
            lisa.send("t", "x", delay=timedelta(seconds=-5))
        assert server.count == 0


def test_a_full_topic_is_retried_then_raised() -> None:
    with Lisa(URL, tries=2) as lisa:
        lisa.send("small", "x", delay=HOUR, id="one")
        with pytest.raises(lr.Full) as error:
            lisa.send("small", "y", delay=HOUR, id="two")
        assert (error.value.code, error.value.id) == ("full", "two")
        (result,) = lisa.send_many("small", [{"payload": "y", "id": "three"}])
        assert isinstance(result, lr.Full) and result.id == "three"
        lisa.cancel("small", "one")


def test_indeterminate_is_repeated_with_the_same_id(topic: str) -> None:
    ids = []
    body = b'{"type":"urn:lisa:problem:indeterminate","title":"t","status":503,"detail":"d","code":"indeterminate"}'

    def answer(count: int, handler: Any, content: bytes) -> Any:
        ids.append(json.loads(content)[0]["id"])
        return (503, {"retry-after": "1"}, body) if count == 1 else forward(handler, content)

    with serve(answer) as proxy, Lisa(proxy.url) as lisa:
        assert lisa.send(topic, "x", delay=HOUR).id == ids[0] == ids[1]
    always = serve(lambda *_: (503, {}, body))
    with always as proxy, Lisa(proxy.url, tries=1) as lisa, pytest.raises(lr.Indeterminate):
        lisa.send(topic, "x")


def test_tokens(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    for token in (TOKEN, file, lambda: TOKEN):
        with Lisa(WITH_TOKENS, token=token) as lisa:
            lisa.send("orders", "x", delay=HOUR)
    for wrong in (None, "wrong"):
        with Lisa(WITH_TOKENS, token=wrong) as lisa, pytest.raises(lr.Unauthorized) as error:
            lisa.send("orders", "x", delay=HOUR)
        assert error.value.status == 401


def test_a_token_with_quotas_is_changed_listed_and_reports_what_it_has_used() -> None:
    with Lisa(WITH_TOKENS, token=TOKEN) as lisa:
        definition = {"scopes": ["send", "read"], "topics": ["quotas-*"]}
        version = lisa.put_token("quotas", definition, create_only=True).version
        with pytest.raises(lr.PreconditionFailed):
            lisa.put_token("quotas", {**definition, "max_topics": 4}, create_only=True)
        lisa.put_token("quotas", {**definition, "max_topics": 3}, if_match=version)
        with pytest.raises(lr.PreconditionFailed):
            lisa.remove_token("quotas", if_match=version)
        found = lisa.get_token("quotas")
        assert (found.topics, found.max_topics, found.declared_in_file) == (["quotas-*"], 3, False)
        assert [one.token for one in lisa.list_tokens("quot").tokens] == ["quotas"]
        secret = lisa.rotate_token("quotas").secret
        assert secret is not None
        own = eventually(lambda: _own_token(secret), "the new secret to be accepted")
        assert (own.token, own.max_topics, own.used.topics, own.used.bytes) == ("quotas", 3, 0, None)
        lisa.remove_token("quotas")


def _own_token(token: str) -> lr.OwnToken | None:
    with Lisa(WITH_TOKENS, token=token) as lisa, contextlib.suppress(lr.Unauthorized):
        return lisa.own_token()
    return None


def test_a_message_has_its_failed_attempts_and_the_holder_of_its_key(lisa: Lisa, topic: str) -> None:
    first, second = lisa.send(topic, "a", key="k"), lisa.send(topic, "b", key="k")
    lisa.pull(topic, wait=WAIT)[0].retry(after=HOUR, error="no")
    copy = lisa.get(topic, first.id, key="k").groups[0]
    attempt = copy.attempts[0]
    assert (copy.state, copy.holder, attempt.outcome, attempt.error) == ("retry", None, "failed", "no")
    assert attempt.at.tzinfo is timezone.utc
    copy = lisa.get(topic, second.id, key="k").groups[0]
    assert (copy.state, copy.holder, copy.attempts) == ("parked", first.id, [])


def test_a_page_leads_to_the_next_one_until_the_last(lisa: Lisa, topic: str) -> None:
    lisa.send_many(topic, [{"id": id, "payload": id, "delay": HOUR, "key": "straße 7"} for id in "abc"])
    listed: list[lr.ListedMessage] = []
    cursor: str | None = None
    while cursor is not None or not listed:
        page = lisa.list(topic, key="straße 7", limit=2, cursor=cursor)
        listed += page.messages
        cursor = page.next
    assert [(one.id, one.state, one.key) for one in listed] == [(id, "waiting", "straße 7") for id in "abc"]
    due_at = listed[0].due_at
    assert due_at is not None and due_at.tzinfo is timezone.utc
    assert lisa.list(topic, to=datetime.now(timezone(HOUR))) == lr.MessagePage([], None)
    assert lisa.reschedule_key(topic, "straße 7", deliver_at=due_at + HOUR) == lr.RescheduledKey(3, 0, 0)
    assert len(lisa.list(topic, from_=due_at + HOUR).messages) == 3
    assert lisa.cancel_key(topic, "straße 7") == lr.CancelledKey(3, 0, 0)
    assert lisa.requeue(topic, ["a"]) == lr.Requeued(0, 0, ["a"])


def test_a_failed_request_is_named() -> None:
    with Lisa("http://127.0.0.1:1", tries=1) as lisa, pytest.raises(lr.TransportError) as error:
        lisa.get("orders", "a")
    assert str(error.value).startswith("no answer from 127.0.0.1:1 to GET /v1/topics/orders/messages/a: ConnectError: ")


def test_garbage_is_listed_and_requeued(lisa: Lisa, topic: str) -> None:
    id = lisa.send(topic, "x").id
    lisa.pull(topic, wait=WAIT)[0].reject("no luck")
    (found,) = lisa.list(topic, state="garbage", group="default", error="luck").messages
    assert (found.id, found.error, found.reason) == (id, "no luck", "rejected")
    assert found.garbage_at is not None and found.garbage_at.tzinfo is timezone.utc
    assert lisa.requeue(topic, (one.id for one in [found])) == lr.Requeued(1, 1, [])
    assert lisa.pull(topic, wait=WAIT)[0].id == id


def test_wrong_arguments_of_lists_keys_and_requeues_are_raised() -> None:
    with serve(lambda *_: None) as server, Lisa(server.url, tries=1) as lisa:
        wrong: list[tuple[Callable[[], Any], str]] = [
            (lambda: lisa.list("t", group=""), "group: ''"),
            (lambda: lisa.list("t", from_=datetime(2040, 1, 1)), "from: .* has no time zone"),
            (lambda: lisa.list("t", **{"sate": "garbage"}), "unknown option 'sate'"),  # type: ignore[arg-type]
            (lambda: lisa.cancel_key("t", ""), "key: ''"),
            (lambda: lisa.reschedule_key("t", "k", delay=HOUR, deliver_at="2040-01-01T00:00:00Z"), "deliver_at: "),
            (lambda: lisa.requeue("t", []), "ids: "),
            (lambda: lisa.requeue("t", "id"), "ids: 'id'"),
            (lambda: lisa.requeue("t", ["id", ""]), "ids: ''"),
        ]
        for call, error in wrong:
            with pytest.raises((TypeError, ValueError), match=error):
                call()
        assert server.count == 0
        with pytest.raises(ValueError, match="manager: "):
            Lisa(server.url, manager="localhost")


def test_extend_defer_retry_and_reject(lisa: Lisa, topic: str) -> None:
    lisa.send(topic, "x")
    delivery = lisa.pull(topic, wait=WAIT, lease=timedelta(seconds=30))[0]
    before = delivery.lease_until
    assert delivery.extend(HOUR).outcome == "extended" and delivery.lease_until > before + HOUR / 2
    assert delivery.defer(after=timedelta(0)).outcome == "deferred"
    delivery = lisa.pull(topic, wait=WAIT)[0]
    assert delivery.attempt == 1
    ended = delivery.retry(after="1ms", error="é" * 20_000)
    assert ended.outcome == "retry" and ended.due_at is not None
    delivery = lisa.pull(topic, wait=WAIT)[0]
    assert delivery.attempt == 2
    assert delivery.reject("bad").outcome == "garbage"
    with pytest.raises(lr.Stale):
        delivery.extend()


def test_work_retries_a_failing_handler_until_garbage(lisa: Lisa) -> None:
    good, bad = lisa.send("jobs", "good").id, lisa.send("jobs", "bad").id
    stop, seen = threading.Event(), []

    def handler(delivery: Delivery) -> lr.Outcome | None:
        seen.append((delivery.text(), delivery.attempt))
        if delivery.text() == "bad":
            raise RuntimeError("this one fails")
        return None

    worker = threading.Thread(target=lambda: lisa.work("jobs", handler, concurrency=2, stop=stop))
    worker.start()
    message = eventually(lambda: (found := lisa.get("jobs", bad)).reason and found, "in garbage")
    assert (message.reason, message.error) == ("exhausted", "RuntimeError: this one fails")
    stop.set()
    worker.join()
    assert sorted(seen) == [("bad", 1), ("bad", 2), ("good", 1)]
    with pytest.raises(lr.NotFound) as error:
        lisa.get("jobs", good)
    assert error.value.ended == "acked"


def test_work_stops_at_a_signal(lisa: Lisa, topic: str) -> None:
    lisa.send(topic, "x")
    before = signal.getsignal(signal.SIGTERM)

    def handler(_: Delivery) -> lr.Defer:
        os.kill(os.getpid(), signal.SIGTERM)
        return lr.Defer(after="1ms")

    lisa.work(topic, handler)
    assert signal.getsignal(signal.SIGTERM) is before
    assert lisa.pull(topic, wait=WAIT)[0].attempt == 1


def test_work_goes_on_after_an_outage_and_raises_what_is_final(topic: str, lisa: Lisa) -> None:
    lisa.send(topic, "x")
    stop = threading.Event()

    def handler(delivery: Delivery) -> None:
        stop.set()

    with serve(losing(1, 2)) as proxy, Lisa(URL, gateway=proxy.url, tries=1) as other:
        # A pull whose answer was lost holds the message until the end of its lease.
        other.work(topic, handler, lease=timedelta(seconds=1), stop=stop)
    with pytest.raises(lr.NotFound):
        lisa.work(topic, handler, group="unknown")


def test_the_async_client_does_the_same(topic: str) -> None:
    async def main() -> None:
        async with AsyncLisa(URL) as lisa:
            sent = await lisa.send(topic, BYTES, delay=HOUR)
            assert (await lisa.get(topic, sent.id)).payload == BYTES
            assert (await lisa.reschedule(topic, sent.id, delay="2h")).outcome == "rescheduled"
            assert (await lisa.cancel(topic, sent.id)).payload == BYTES
            await lisa.send(topic, "x", id="k", delay=HOUR, key="k")
            assert [one.id for one in (await lisa.list(topic, key="k")).messages] == ["k"]
            assert (await lisa.reschedule_key(topic, "k", delay="2h")).rescheduled == 1
            assert (await lisa.cancel_key(topic, "k")).cancelled == 1
            assert (await lisa.requeue(topic, ["k"])).missing == ["k"]
            results = await lisa.send_many(topic, [{"payload": "a"}, {"payload": "b"}])
            assert all(isinstance(result, lr.Sent) for result in results)
            first = (await lisa.pull(topic, wait=WAIT, lease=HOUR))[0]
            await first.extend(timedelta(minutes=5))
            await first.ack()
            second = (await lisa.pull(topic, wait=WAIT))[0]
            (ended,) = await lisa.settle_many([(second, lr.Ack())])
            assert isinstance(ended, lr.Ended)
            with pytest.raises(lr.Stale):
                await second.retry()
            await lisa.send("jobs", "bad")
            stop, seen = asyncio.Event(), []

            async def handler(delivery: AsyncDelivery) -> lr.Outcome | None:
                seen.append(delivery.attempt)
                if delivery.is_last_attempt:
                    stop.set()
                raise RuntimeError("this one fails")

            await lisa.work("jobs", handler, stop=stop)
            assert seen == [1, 2]

            # A cancelled worker hands back what it has, without a counted attempt.
            await lisa.send(topic, "x")
            began = asyncio.Event()

            async def endless(_: AsyncDelivery) -> None:
                began.set()
                await asyncio.Event().wait()

            worker = asyncio.create_task(lisa.work(topic, endless))
            await began.wait()
            worker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await worker
            again = (await lisa.pull(topic, wait=WAIT))[0]
            assert again.attempt == 1
            await again.ack()

    asyncio.run(main())


def test_a_handler_that_lost_its_lease_is_cancelled(topic: str) -> None:
    async def main() -> None:
        async with AsyncLisa(URL) as lisa:
            await lisa.send(topic, "x")
            stop, cancelled = asyncio.Event(), asyncio.Event()

            async def handler(delivery: AsyncDelivery) -> None:
                # Another worker settles it.
                await lisa.settle(delivery.token, lr.Ack())
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.set()
                    raise
                finally:
                    stop.set()

            await lisa.work(topic, handler, lease=timedelta(seconds=1), stop=stop)
            assert cancelled.is_set()

    asyncio.run(main())


def test_the_signature_of_a_webhook(lisa: Lisa) -> None:
    got: list[tuple[dict[str, str], bytes]] = []

    def receive(_: int, handler: Any, body: bytes) -> tuple[int, dict[str, str], bytes]:
        got.append((dict(handler.headers.items()), body))
        return 204, {}, b""

    with serve(receive, port=HOOK_PORT):
        sent = lisa.send("hooks", BYTES)
        eventually(lambda: got, "a webhook")
    headers, body = got[0]
    assert body == BYTES
    other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD/Xh8WbQkMCA="
    assert lr.verify_webhook(headers, body, SECRET) == sent.id
    assert lr.verify_webhook(httpx.Headers(headers), body, [other, SECRET]) == sent.id
    sample()["verify"](SECRET, httpx.Headers(headers), body)
    with pytest.raises(ValueError, match="no signature"):
        sample()["verify"](SECRET, httpx.Headers(headers), body + b"x")
    changes: list[Callable[[], str]] = [
        lambda: lr.verify_webhook(headers, body + b"x", SECRET),
        lambda: lr.verify_webhook(headers, body, other),
        lambda: lr.verify_webhook(headers, body, SECRET, tolerance=timedelta(days=-1)),
        lambda: lr.verify_webhook({}, body, SECRET),
    ]
    for change in changes:
        with pytest.raises(lr.InvalidSignature):
            change()
    with pytest.raises(ValueError, match="whsec_"):
        lr.verify_webhook(headers, body, "secret")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timestamp", ""),
        ("timestamp", "-1"),
        ("timestamp", "nan"),
        ("timestamp", "1e9"),
        ("timestamp", "9" * 400),
        ("timestamp", "9" * 5_000),
        ("timestamp", "١٧٦٤١٩٥٧٧٤"),
        ("timestamp", "²"),
        ("timestamp", "\ud800"),
        ("id", "\ud800"),
        ("id", "\udce9"),
        ("signature", "v1,\ud800"),
        ("signature", "v1,é"),
        ("signature", ""),
    ],
)
def test_a_hostile_webhook_is_an_invalid_signature(name: str, value: str) -> None:
    now = str(int(time.time()))
    headers = {"webhook-id": "1", "webhook-timestamp": now, "webhook-signature": "v1,AAAA", f"webhook-{name}": value}
    with pytest.raises(lr.InvalidSignature):
        lr.verify_webhook(headers, b"{}", SECRET)
    with pytest.raises(ValueError):
        sample()["verify"](SECRET, headers, b"{}")
    with pytest.raises(ValueError):
        sample()["verify"](SECRET, {}, b"{}")


def test_a_webhook_cannot_be_replayed_with_its_time_in_the_id() -> None:
    old, now = int(time.time()) - 3600, int(time.time())
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    # An hour ago, a body that begins with the time of now was sent.
    signature = base64.b64encode(hmac.new(key, f"1.{old}.{now}.x".encode(), hashlib.sha256).digest()).decode()
    headers = {"webhook-id": f"1.{old}", "webhook-timestamp": str(now), "webhook-signature": f"v1,{signature}"}
    with pytest.raises(lr.InvalidSignature):
        lr.verify_webhook(headers, b"x", SECRET)
    with pytest.raises(ValueError):
        sample()["verify"](SECRET, headers, b"x")


def sample() -> dict[str, Any]:
    """Returns what the sample in the guide to webhooks defines."""
    guide = Path(__file__).parents[3] / "docs/guides/webhooks.md"
    block = re.search(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    assert block
    defined: dict[str, Any] = {}
    exec(block[1], defined)
    return defined


def test_the_quickstart_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    block = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    output = re.search(r"The output is `(.*?)`\.", readme)
    assert block and output
    exec(block[1].replace("http://127.0.0.1:7812", URL), {})
    assert capsys.readouterr().out.strip() == output[1]
