"""The external scaler of a running manager, called as KEDA calls it."""

import json
import os
import pathlib
import socket
import threading
import time
import urllib.error
import urllib.request

import externalscaler_pb2 as pb
import externalscaler_pb2_grpc as rpc
import grpc
import pytest

PORTS = {role: os.environ[f"LISA_TEST_{role.upper()}"] for role in ("producer", "manager", "consumer", "gateway", "scaler", "secured")}


def http(role, method, path, body=None, headers=None):
    request = urllib.request.Request(f"http://127.0.0.1:{PORTS[role]}{path}", data=body, method=method)
    for name, value in {"Authorization": "Bearer all", **(headers or {})}.items():
        request.add_header(name, value)
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read()


def eventually(look, what):
    """Waits until `look` returns something."""
    for _ in range(300):
        try:
            if found := look():
                return found
        except (OSError, grpc.RpcError) as error:
            what = f"{what}: {error}"
        time.sleep(0.1)
    pytest.fail(f"not within 30 s: {what}")


def send(topic, delay="0s"):
    headers = {"Lisa-Delay": delay, "Content-Type": "text/plain"}
    return json.loads(http("producer", "POST", f"/v1/topics/{topic}/messages", b"hello", headers))


def stats(topic):
    found = json.loads(http("manager", "GET", "/v1/stats"))
    return next(one for one in found["topics"] if one["topic"] == topic)


def pull(topic, group):
    body = json.dumps({"wait": "20s", "lease": "10m"}).encode()
    answer = json.loads(http("gateway", "POST", f"/v1/topics/{topic}/groups/{group}/pull", body, {"Content-Type": "application/json"}))
    return answer["deliveries"][0]["token"]


def ack(token):
    http("gateway", "POST", f"/v1/deliveries/{token}/ack", b"")


def ref(topic, **more):
    metadata = {"scalerAddress": f"lisa:{PORTS['scaler']}", "topic": topic, "tokenFromEnv": "all", **more}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return pb.ScaledObjectRef(name="consumers", namespace="default", scalerMetadata=metadata)


@pytest.fixture(scope="session")
def scaler():
    eventually(lambda: http("manager", "GET", "/readyz"), "the manager is not ready")
    eventually(lambda: http("producer", "GET", "/readyz"), "the producer is not ready")
    eventually(lambda: http("consumer", "GET", "/readyz"), "the consumer is not ready")
    with grpc.insecure_channel(f"127.0.0.1:{PORTS['scaler']}") as channel:
        yield rpc.ExternalScalerStub(channel)


def value(scaler, of):
    answer = scaler.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=of, metricName="s0-lisa"), timeout=10)
    (metric,) = answer.metricValues
    assert metric.metricName == "s0-lisa"
    assert metric.metricValueFloat == metric.metricValue
    return metric.metricValue


def active(scaler, of):
    return scaler.IsActive(of, timeout=10).result


def test_a_message_counts_from_the_time_that_a_pod_needs_until_it_is_acknowledged(scaler):
    soon, at_once, early = (ref("orders", startSeconds=start) for start in ("3", "0", "600"))
    assert value(scaler, soon) == 0 and not active(scaler, soon)
    send("orders", "8s")
    due = time.monotonic() + 8
    eventually(lambda: value(scaler, early) == 1, "what is due within ten minutes")
    assert value(scaler, soon) == 0 and not active(scaler, soon), "it is not due for a while"
    eventually(lambda: value(scaler, soon) == 1, "it is due soon")
    assert time.monotonic() < due, "it counted only when it was due"
    assert value(scaler, at_once) == 0, "it is not due yet"
    assert stats("orders")["waiting"] == 1
    assert active(scaler, soon)
    eventually(lambda: stats("orders")["groups"][0]["ready"] == 1, "ready")
    assert value(scaler, at_once) == value(scaler, soon) == 1
    token = pull("orders", "billing")
    eventually(lambda: stats("orders")["groups"][0]["in_flight"] == 1, "in flight")
    time.sleep(1.1)  # A count is used for a second.
    assert value(scaler, at_once) == 1 and active(scaler, at_once), "its consumer is needed"
    ack(token)
    eventually(lambda: value(scaler, at_once) == 0, "nothing is left")
    assert not active(scaler, at_once)


def test_a_stream_pushes_when_the_first_message_falls_due(scaler):
    of = ref("pushed", startSeconds="2")
    pushed = []
    stream = scaler.StreamIsActive(of)

    def listen():
        try:
            for answer in stream:
                pushed.append((answer.result, time.monotonic()))
        except grpc.RpcError:
            pass

    listener = threading.Thread(target=listen)
    listener.start()
    eventually(lambda: pushed, "the first answer")
    send("pushed", "6s")
    sent = time.monotonic()
    eventually(lambda: len(pushed) == 2, "a push")
    assert [result for result, _ in pushed] == [False, True]
    assert 3 < pushed[1][1] - sent < 6, "before it is due, as a pod takes time to start"
    ack(pull("pushed", "default"))
    eventually(lambda: len(pushed) == 3, "a push")
    assert pushed[2][0] is False
    stream.cancel()
    listener.join(10)
    assert len(pushed) == 3


def test_each_group_has_its_own_number(scaler):
    send("shared")
    send("shared")
    billing, audit = ref("shared", group="billing"), ref("shared", groupFromEnv="audit")
    eventually(lambda: value(scaler, billing) == value(scaler, audit) == 2, "both groups")
    ack(pull("shared", "audit"))
    eventually(lambda: value(scaler, audit) == 1, "one is left")
    assert value(scaler, billing) == 2
    http("manager", "POST", "/v1/topics/shared/pause")
    send("shared")
    time.sleep(1.1)
    assert value(scaler, billing) == 2, "what a pause holds back needs no consumer"
    http("manager", "POST", "/v1/topics/shared/resume")
    eventually(lambda: value(scaler, billing) == 3, "resumed")


def test_the_target_is_that_of_the_trigger(scaler):
    (spec,) = scaler.GetMetricSpec(ref("orders"), timeout=10).metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("lisa-orders", 100, 100.0)
    of = ref("orders", group="billing", messagesPerReplica="7")
    (spec,) = scaler.GetMetricSpec(of, timeout=10).metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("lisa-orders-billing", 7, 7.0)


WRONG = [
    (ref("orders", startSeconds="601"), "INVALID_ARGUMENT", 'metadata.startSeconds: "601" is not a whole number from 0 to 600'),
    (ref("orders", messagesPerReplica="0"), "INVALID_ARGUMENT", 'metadata.messagesPerReplica: "0" is not a whole number from 1 to'),
    (ref("orders", messagePerReplica="5"), "INVALID_ARGUMENT", 'unknown key; did you mean "messagesPerReplica"?'),
    (ref(None), "INVALID_ARGUMENT", "metadata.topic: missing; set it to the name of a topic"),
    (ref("Orders!"), "INVALID_ARGUMENT", 'metadata.topic: "Orders!" is not a topic: must be '),
    (ref("orders", group="bilingl"), "INVALID_ARGUMENT", "metadata.group: topic orders has no group bilingl, only billing"),
    (ref("shared"), "INVALID_ARGUMENT", "metadata.group: topic shared has several groups, name one: audit, billing"),
    (ref("ordres"), "NOT_FOUND", 'metadata.topic: '),
    (ref("orders", tokenFromEnv=None), "UNAUTHENTICATED", "metadata.token: missing; set tokenFromEnv"),
    (ref("orders", tokenFromEnv="wrong"), "UNAUTHENTICATED", "metadata.token: unknown token"),
    (ref("orders", tokenFromEnv="shop"), "PERMISSION_DENIED", "lacks the scope `read`"),
    (ref("orders", tokenFromEnv="team"), "PERMISSION_DENIED", "the token does not reach this topic"),
    (ref("ordres", tokenFromEnv="team"), "PERMISSION_DENIED", "does not reach this topic"),
    (ref("shared", tokenFromEnv="team"), "INVALID_ARGUMENT", "topic shared has several groups"),
    (ref("orders", tokenFromEnv="old"), "UNAUTHENTICATED", "the token has expired"),
    (ref("orders", more="x" * 20_000), "OUT_OF_RANGE", "message"),
]


@pytest.mark.parametrize("of, code, text", WRONG, ids=[text for _, _, text in WRONG])
def test_an_error_says_what_is_wrong_where_and_what_is_allowed(scaler, of, code, text):
    calls = [lambda: active(scaler, of), lambda: value(scaler, of), lambda: next(scaler.StreamIsActive(of, timeout=10))]
    for call in calls:
        with pytest.raises(grpc.RpcError) as raised:
            call()
        assert (raised.value.code().name, text in raised.value.details()) == (code, True), raised.value.details()


def test_other_methods_are_unimplemented(scaler):
    with pytest.raises(grpc.RpcError) as raised:
        next(scaler.StreamMetricSpec(ref("orders"), timeout=10))
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_calls_are_counted(scaler):
    active(scaler, ref("orders"))
    with pytest.raises(grpc.RpcError):
        active(scaler, ref(None))
    metrics = http("manager", "GET", "/metrics").decode()
    for code in "Ok", "InvalidArgument":
        assert f'lisa_scaler_calls_total{{method="IsActive",code="{code}"}}' in metrics


def test_streams_have_a_limit_and_leave_room_for_calls(scaler):
    of = ref("orders")
    streams = [scaler.StreamIsActive(of) for _ in range(270)]
    refused = 0
    for stream in streams:
        try:
            next(stream)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
            refused += 1
    assert refused == 270 - 256
    assert not active(scaler, of), "other calls are answered"
    for stream in streams:
        stream.cancel()
    eventually(lambda: next(scaler.StreamIsActive(of)) is not None, "a stream after all have ended")


def test_connections_of_strangers_do_not_replace_those_of_a_client(scaler):
    stream = scaler.StreamIsActive(ref("orders"))
    next(stream)
    to = "127.0.0.1", int(PORTS["scaler"])
    # The listener holds 32 connections. Each stranger has an address of its own, so none has more than the client.
    strangers = [socket.create_connection(to, 10, (f"127.0.1.{n}", 0)) for n in range(1, 65)]
    # The newest is open, since the listener has replaced another.
    for replaced in strangers[:32]:
        replaced.settimeout(10)
        while replaced.recv(1024):
            pass
    assert stream.is_active()
    for stranger in strangers:
        stranger.close()
    stream.cancel()


def test_with_a_certificate_the_scaler_speaks_only_tls(scaler):
    of, address = ref("orders"), f"127.0.0.1:{PORTS['secured']}"
    trusted = grpc.ssl_channel_credentials(pathlib.Path(os.environ["LISA_TEST_CA"]).read_bytes())
    with grpc.secure_channel(address, trusted) as channel:
        secured = rpc.ExternalScalerStub(channel)
        eventually(lambda: secured.IsActive(of, timeout=10), "no answer over TLS")
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        rpc.ExternalScalerStub(channel).IsActive(of, timeout=10)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE, refused.value
