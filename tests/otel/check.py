"""Runs producer, manager and consumer, and checks each MUST and SHOULD of the conventions: `check.py BIN DIR`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from receiver import Receiver, Webhook

BIN, DIR = Path(sys.argv[1]), Path(sys.argv[2])
KEY, PAYLOAD, HEADER = "the-secret-key", "the-secret-payload", "the-secret-header"
# The caller's own span, recorded and not recorded.
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{CALLER}-01"
NOT_RECORDED = f"00-{TRACE}-{CALLER}-00"
KIND_OF = {"receive": "CLIENT", "process": "CONSUMER", "settle": "CLIENT"}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def post(port, path, body=b"", headers=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers=headers or {}, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        is_json = answer.headers["Content-Type"] == "application/json"
        return json.loads(answer.read()) if is_json else answer.read()


class Role:
    """A running program."""

    def __init__(self, name, port, environment):
        self.name, self.log = name, DIR / f"{name}-{time.monotonic_ns()}.log"
        clean = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
        self.process = subprocess.Popen(
            [BIN / f"lisa-{name}", "run", "--config", DIR / "lisa.toml"],
            env={**clean, "LISA_LOG": "info", **environment}, stderr=self.log.open("w"),
        )
        try:
            wait(f"{name} is ready", lambda: self.is_ready(port))
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def is_ready(self, port):
        assert self.process.poll() is None, self.text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return True
        except OSError:
            return False

    def text(self):
        return self.log.read_text()

    def stop(self):
        """Ends the program as an operator does, and returns how long that took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        assert code == 0, f"{self.name} ended with {code}: {self.text()}"
        return time.monotonic() - began


def wait(what, check, seconds=60):
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


class Site:
    """The three programs, a webhook, and a receiver of spans."""

    def __init__(self):
        self.receiver, self.webhook = Receiver(), Webhook()
        self.producer, self.manager, self.consumer, self.gateway = (free_port() for _ in range(4))
        self.roles = []
        self.configure("")

    def configure(self, extra):
        (DIR / "lisa.toml").write_text(f"""
redis.url = "unix://{DIR}/redis.sock"
producer.listen = "127.0.0.1:{self.producer}"
manager.listen = "127.0.0.1:{self.manager}"
consumer.listen = "127.0.0.1:{self.consumer}"
consumer.gateway.listen = "127.0.0.1:{self.gateway}"
{extra}
[topics.orders]
retry = {{ base = "100ms", max = "1s" }}
[topics.pulled]
[[consumer.subscriptions]]
topic = "orders"
group = "default"
concurrency = 1
sink = {{ type = "http", url = "http://127.0.0.1:{self.webhook.port}/hook", allow_private = true }}
""")

    def start(self, exports=True, **environment):
        common = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.receiver.port}",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=shop",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            **environment,
        } if exports else environment
        for name, port in (("manager", self.manager), ("producer", self.producer), ("consumer", self.consumer)):
            own = {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"} if exports and name == "producer" else {}
            self.roles.append(Role(name, port, {**common, **own}))

    def stop(self):
        times = [role.stop() for role in reversed(self.roles)]
        self.roles = []
        return times

    def send(self, id, topic="orders", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named = {"Lisa-Id": id, "Lisa-Key": KEY, "Lisa-Header-Note": HEADER, **named}
        return post(self.producer, f"/v1/topics/{topic}/messages", PAYLOAD.encode(), named)

    def journey(self, id, attempts=1):
        """Waits for the spans of a message: its send, and a process and a settle span for each attempt."""
        def is_there(spans):
            return sum(span.message == id for span in spans) >= 1 + 2 * attempts
        spans = self.receiver.wait(f"the spans of {id}", is_there)
        for span in spans:
            check_span(span)
        of = [span for span in spans if span.message == id]
        assert len(of) == len(spans), f"others than of {id}: {spans}"
        sends = [span for span in of if span.of == "send"]
        processes = sorted((span for span in of if span.of == "process"), key=lambda span: span.start)
        settles = sorted((span for span in of if span.of == "settle"), key=lambda span: span.start)
        assert (len(sends), len(processes), len(settles)) == (1, attempts, attempts), of
        return sends[0], processes, settles


def check_span(span):
    """What holds for every span."""
    a = span.attributes
    # Required, and of low cardinality.
    assert a["messaging.system"] == "lisa", span
    assert a["messaging.operation.name"] in {"send", "schedule", "receive", "process", "ack", "retry", "defer", "reject", "hand_back", "settle"}, span
    assert span.of in {"send", "receive", "process", "settle"}, span
    # Conditionally required.
    assert a["messaging.destination.name"] in {"orders", "pulled"}, span
    assert ("error.type" in a) == span.is_error, span
    assert ("messaging.batch.message_count" in a) != ("messaging.message.id" in a), span
    # Recommended.
    assert a["messaging.destination.partition.id"] == "0", span
    assert a["server.address"] == f"{DIR}/redis.sock" and "server.port" not in a, span
    if span.of != "send":
        assert a["messaging.consumer.group.name"] == "default" and a["messaging.client.id"], span
    assert span.name == f"{a['messaging.operation.name']} {a['messaging.destination.name']}", span
    if span.of != "send":
        assert span.kind == KIND_OF[span.of], span
    else:
        # A context that the caller gave is the creation context, otherwise that of the span is.
        count = a.get("messaging.batch.message_count", 1)
        assert span.kind == ("CLIENT" if len(span.links) == count else "PRODUCER"), span
    assert (span.of == "process") <= ({"lisa.attempt", "lisa.delivery_timestamp", "lisa.lateness"} <= set(a)), span
    unknown = [name for name in a if not name.startswith(("messaging.", "server.", "lisa.")) and name != "error.type"]
    assert not unknown, span
    assert 0 < span.start <= span.end, span
    for secret in (KEY, PAYLOAD, HEADER):
        assert secret not in span.text, f"{secret} in {span.text}"
    assert span.scope[0] == "lisa" and span.scope[1], span.scope
    assert re.fullmatch(r"https://opentelemetry.io/schemas/\d+\.\d+\.\d+", span.schema), span.schema
    resource = span.resource
    assert resource["service.name"] in {"lisa-producer", "lisa-consumer", "lisa-manager"}, resource
    assert resource["deployment.environment.name"] == "test" and resource["lisa.namespace"] == "lisa", resource
    assert resource["service.instance.id"] and resource["telemetry.sdk.language"] == "rust", resource


def hook(site, id, attempt=0):
    return wait(f"webhook of {id}", lambda: site.webhook.of(id)[attempt:])[0]


def a_delayed_message_of_a_caller_has_two_traces_with_one_link(site):
    sent = site.send("caller", traceparent=CONTEXT, tracestate="shop=1", Lisa_Delay="2s")
    send, [process], [settle] = site.journey("caller")
    assert (send.name, send.kind) == ("schedule orders", "CLIENT"), send
    assert (send.trace, send.parent, send.links) == (TRACE, CALLER, [(TRACE, CALLER)]), send
    assert process.links == [(TRACE, CALLER)] and process.parent == "" and process.trace != TRACE, process
    assert {span.trace for span in (send, process, settle)} == {TRACE, process.trace}
    assert (settle.name, settle.parent) == ("ack orders", process.id), settle
    assert send.end < process.start and process.end - process.start < 60e9
    due = process.attributes["lisa.delivery_timestamp"]
    assert send.attributes["lisa.delivery_timestamp"] == due and sent["due_at"].startswith("20"), (send, sent)
    assert due <= process.start / 1e6 + 1 and 0 <= process.attributes["lisa.lateness"] < 60, process
    headers = hook(site, "caller")
    assert headers["traceparent"] == f"00-{process.trace}-{process.id}-01", headers
    assert headers["lisa-origin-traceparent"] == CONTEXT and headers["lisa-origin-tracestate"] == "shop=1", headers
    assert "tracestate" not in headers, "the trace of the delivery is a new one"


def a_message_without_a_context_gets_that_of_its_send(site):
    site.send("own")
    send, [process], _ = site.journey("own")
    assert (send.name, send.kind, send.parent, send.links) == ("send orders", "PRODUCER", "", []), send
    assert process.links == [(send.trace, send.id)] and process.trace != send.trace, process
    assert hook(site, "own")["lisa-origin-traceparent"] == f"00-{send.trace}-{send.id}-01"


def a_retry_is_another_span_with_the_same_link(site):
    site.webhook.refuse.add("again")
    site.send("again", traceparent=CONTEXT)
    _, processes, settles = site.journey("again", attempts=2)
    assert [span.attributes["lisa.attempt"] for span in processes] == [1, 2], processes
    assert [span.links for span in processes] == [[(TRACE, CALLER)]] * 2, processes
    assert processes[0].trace != processes[1].trace
    assert processes[0].attributes["error.type"] == "retry" and not processes[1].is_error, processes
    assert [span.name for span in settles] == ["retry orders", "ack orders"], settles
    assert [span.parent for span in settles] == [span.id for span in processes]
    assert [hook(site, "again", n)["traceparent"][3:35] for n in (0, 1)] == [span.trace for span in processes]


def prefetched_messages_have_no_span_before_their_handler(site):
    count = 20
    for n in range(count):
        site.send(f"pre-{n}", Lisa_Key=f"{KEY}-{n}")
    spans = site.receiver.wait("the deliveries", lambda spans: len(spans) >= 3 * count)
    processes = sorted((span for span in spans if span.of == "process"), key=lambda span: span.start)
    assert len(processes) == count and not [span for span in spans if span.of == "receive"]
    for before, after in zip(processes, processes[1:]):
        assert after.start >= before.end, "one handler runs at a time, so one span does"


def a_batch_is_one_span(site):
    lines = [{"payload": PAYLOAD, "key": KEY, "headers": {"traceparent": CONTEXT} if n == 0 else {}} for n in range(3)]
    body = "\n".join(map(json.dumps, lines)).encode()
    other = "00f067aa0ba902b7"
    headers = {"Content-Type": "application/x-ndjson", "traceparent": f"00-{TRACE}-{other}-01"}
    post(site.producer, "/v1/topics/orders/messages:batch", body, headers)
    def is_there(spans):
        sent = sum(span.attributes["messaging.batch.message_count"] for span in spans if span.of == "send")
        return sent == sum(span.of == "settle" for span in spans) == 3
    spans = site.receiver.wait("the deliveries", is_there)
    for span in spans:
        check_span(span)
    sends = [span for span in spans if span.of == "send"]
    assert all((span.trace, span.parent) == (TRACE, other) for span in sends), "streamed bodies are part of the request"
    assert [link for span in sends for link in span.links] == [(TRACE, CALLER)], sends
    origins = {(TRACE, CALLER)} | {(span.trace, span.id) for span in sends}
    links = [span.links for span in spans if span.of == "process"]
    assert all(len(of) == 1 for of in links) and {of[0] for of in links} <= origins, (links, origins)
    assert (TRACE, CALLER) in {of[0] for of in links}


def a_pull_is_a_span_once_a_client_gets_messages(site):
    for n in range(3):
        site.send(f"pull-{n}", topic="pulled", Lisa_Key=f"{KEY}-{n}", traceparent=CONTEXT)
    site.receiver.wait("the sends", lambda spans: len(spans) == 3)
    worker = "00-11111111111111111111111111111111-2222222222222222-01"
    path = "/v1/topics/pulled/groups/default/pull"
    time.sleep(0.5)
    assert not site.receiver.take(), "nobody has the messages"
    pulled = post(site.gateway, path, b'{"max": 2, "wait": "10s"}', {"traceparent": worker})["deliveries"]
    assert all(one["headers"]["traceparent"] == CONTEXT for one in pulled), "the worker makes its own span from it"
    [receive] = site.receiver.wait("the receive span", lambda spans: spans)
    check_span(receive)
    assert (receive.name, receive.trace, receive.parent) == ("receive pulled", "1" * 32, "2" * 16), receive
    assert receive.links == [(TRACE, CALLER)] * len(pulled), receive
    assert receive.attributes["messaging.batch.message_count"] == len(pulled), receive
    while len(pulled) < 3:
        pulled += post(site.gateway, path, b'{"wait": "10s"}')["deliveries"]
        spans = site.receiver.wait("a receive span", lambda spans: spans)
        assert [span.name for span in spans] == ["receive pulled"] and spans[0].message == pulled[-1]["id"], spans
        assert (spans[0].parent, spans[0].attributes["lisa.attempt"]) == ("", 1), spans
    post(site.gateway, f"/v1/deliveries/{pulled[0]['token']}/ack", b"", {"traceparent": worker})
    [ack] = site.receiver.wait("the ack", lambda spans: spans)
    check_span(ack)
    assert (ack.name, ack.parent, ack.message) == ("ack pulled", "2" * 16, pulled[0]["id"]), ack
    rest = [{"token": pulled[1]["token"], "ack": True}, {"token": pulled[2]["token"], "defer": {"after": "1h"}}, {"token": pulled[0]["token"], "ack": True}]
    post(site.gateway, "/v1/deliveries:settle", json.dumps(rest).encode(), {"Content-Type": "application/json"})
    [settle] = site.receiver.wait("the batch", lambda spans: spans)
    check_span(settle)
    assert settle.name == "settle pulled" and settle.attributes["error.type"] == "stale", settle
    assert settle.attributes["messaging.batch.message_count"] == 3, settle


def a_caller_that_is_not_recorded_is_followed(site):
    site.send("silent", traceparent=NOT_RECORDED)
    headers = hook(site, "silent")
    version, trace, span, flags = headers["traceparent"].split("-")
    assert trace != TRACE and flags == "00" and headers["lisa-origin-traceparent"] == NOT_RECORDED, headers
    site.send("loud", traceparent=CONTEXT)
    site.journey("loud")


def the_standard_variables_apply(site):
    assert all(headers.get("x-tenant") == "shop" for _, headers in site.receiver.requests)
    assert {coding for coding, _ in site.receiver.requests} == {"gzip", None}


def without_a_collector_everything_goes_on(site):
    site.receiver.stop()
    before = site.webhook.count()
    for n in range(200):
        site.send(f"away-{n}", Lisa_Key=f"{KEY}-{n}")
    wait("all deliveries", lambda: site.webhook.count() >= before + 200)
    for role in site.roles[1:]:
        wait(f"{role.name} has logged the outage", lambda: role.text().count("cannot export spans") == 1)
    site.receiver.start_again()
    def is_back():
        site.send(f"back-{time.monotonic_ns()}")
        spans = site.receiver.take()
        return any(span.of == "send" for span in spans) and any(span.of == "process" for span in spans)
    wait("spans are back", is_back)
    for role in site.roles[1:]:
        # It logs this after the answer that the receiver has sent.
        wait(f"{role.name} has logged the end of the outage", lambda: "can export spans again" in role.text())
        text = role.text()
        assert text.count("cannot export spans") == 1 and text.count("can export spans again") == 1, text
    site.receiver.wait("the rest", lambda spans: True)


def the_last_spans_are_flushed(site):
    """With a delay of a minute between exports, only the end of the programs exports."""
    site.start(OTEL_BSP_SCHEDULE_DELAY="60000")
    site.send("last")
    hook(site, "last")
    wait("the ack", lambda: b"lisa_deliveries_total{" in urllib.request.urlopen(f"http://127.0.0.1:{site.consumer}/metrics").read())
    assert not site.receiver.take()
    site.stop()
    # A message that the programs before were delivering may be delivered again.
    names = sorted(span.name for span in site.receiver.take() if span.message == "last")
    assert names == ["ack orders", "process orders", "send orders"], names


def a_collector_that_hangs_delays_no_end(site):
    site.receiver.stop()
    with socket.socket() as hanging:
        hanging.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hanging.bind(("127.0.0.1", site.receiver.port))
        hanging.listen(100)
        site.start(OTEL_EXPORTER_OTLP_TIMEOUT="600000")
        site.send("hang")
        hook(site, "hang")
        times = site.stop()
        assert max(times) < 30, times
    site.receiver.start_again()


def each_journey_is_recorded_whole_or_not_at_all(site):
    site.start(OTEL_TRACES_SAMPLER="parentbased_traceidratio", OTEL_TRACES_SAMPLER_ARG="0.5")
    count = 200
    for n in range(count):
        site.send(f"half-{n}", Lisa_Key=f"{KEY}-{n}")
    for n in range(count):
        hook(site, f"half-{n}")
    site.stop()
    spans = site.receiver.take()
    sent = {(span.trace, span.id) for span in spans if span.of == "send"}
    linked = [span.links[0] for span in spans if span.of == "process"]
    assert len(linked) == len(set(linked)) and set(linked) == sent, (len(linked), len(sent))
    assert 50 < len(sent) < 150, len(sent)
    for span in spans:
        check_span(span)


def a_delivery_continues_the_trace_of_its_message_after_a_reload_that_asks_for_it(site):
    site.start()
    site.send("linked", traceparent=CONTEXT)
    _, [process], _ = site.journey("linked")
    assert process.trace != TRACE and process.links == [(TRACE, CALLER)], process
    site.configure('[otel]\nprocess = "parent"')
    for role in site.roles:
        role.process.send_signal(signal.SIGHUP)
        wait(f"{role.name} has reloaded", lambda: "configuration reloaded" in role.text())
    def child():
        id = f"child-{time.monotonic_ns()}"
        site.send(id, traceparent=CONTEXT)
        _, [process], [settle] = site.journey(id)
        # The earlier start takes messages for a moment.
        return (process, settle) if process.trace == TRACE else None
    process, settle = wait("a delivery continues the trace", child)
    assert process.parent == CALLER, process
    assert process.links == [(TRACE, CALLER)] and settle.trace == TRACE, process
    site.stop()
    site.configure("")


def without_an_endpoint_headers_pass_through(site, **environment):
    site.start(exports=False, **environment)
    id = f"off-{time.monotonic_ns()}"
    site.send(id, traceparent=CONTEXT, tracestate="shop=1")
    site.send(f"{id}-none")
    headers = hook(site, id)
    assert (headers["traceparent"], headers["tracestate"]) == (CONTEXT, "shop=1"), headers
    none = hook(site, f"{id}-none")
    for of in (headers, none):
        assert not [name for name in of if name.startswith("lisa-origin")], of
    assert "traceparent" not in none, none
    site.stop()
    assert not site.receiver.take()


def passed(what, *arguments, **named):
    began = time.monotonic()
    what(*arguments, **named)
    print(f"ok {what.__name__} {named or ''} ({time.monotonic() - began:.1f} s)", flush=True)


def main():
    site = Site()
    try:
        site.start()
        for what in (
            a_delayed_message_of_a_caller_has_two_traces_with_one_link,
            a_message_without_a_context_gets_that_of_its_send,
            a_retry_is_another_span_with_the_same_link,
            prefetched_messages_have_no_span_before_their_handler,
            a_batch_is_one_span,
            a_pull_is_a_span_once_a_client_gets_messages,
            a_caller_that_is_not_recorded_is_followed,
            the_standard_variables_apply,
            without_a_collector_everything_goes_on,
        ):
            passed(what, site)
        site.stop()
        site.receiver.take()
        for what in (
            the_last_spans_are_flushed,
            a_collector_that_hangs_delays_no_end,
            each_journey_is_recorded_whole_or_not_at_all,
            a_delivery_continues_the_trace_of_its_message_after_a_reload_that_asks_for_it,
            without_an_endpoint_headers_pass_through,
        ):
            passed(what, site)
        passed(without_an_endpoint_headers_pass_through, site, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{site.receiver.port}", OTEL_SDK_DISABLED="true")
        passed(without_an_endpoint_headers_pass_through, site, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{site.receiver.port}", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    except BaseException:
        for role in site.roles:
            print(f"== {role.name}\n{role.text()[-4000:]}", file=sys.stderr)
        raise
    finally:
        for role in site.roles:
            role.process.kill()
            role.process.wait()


main()
