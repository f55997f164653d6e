"""Unmodified boto3 against an endpoint that works with SQS clients: Lisa, or moto_server for comparison.

SQS_ENDPOINT is the address, and SQS_SERVER `lisa` or `moto`. Each test that names a difference between the two has the mark
`differs`: it checks what Lisa does, and what moto (SQS) does instead.
"""

import hashlib
import json
import os
import time
import uuid

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

ENDPOINT = os.environ["SQS_ENDPOINT"]
IS_LISA = os.environ["SQS_SERVER"] == "lisa"
# Long enough for a loaded machine.
PATIENCE = 60


def connect(key=os.environ.get("SQS_KEY", "test"), secret=os.environ.get("SQS_SECRET", "test")):
    return boto3.client(
        "sqs",
        endpoint_url=ENDPOINT,
        region_name="eu-central-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 2}),
    )


sqs = connect()
unchecked = pytest.mark.skipif(not IS_LISA, reason="SQS checks this, moto does not")


@pytest.fixture
def queue():
    return sqs.create_queue(QueueName=f"q-{uuid.uuid4().hex[:12]}")["QueueUrl"]


@pytest.fixture
def fifo():
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    name = f"q-{uuid.uuid4().hex[:12]}.fifo"
    return sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]


def receive(url, count=1, **options):
    """Receives until there are `count` messages."""
    messages, end = [], time.monotonic() + PATIENCE
    while len(messages) < count:
        assert time.monotonic() < end, f"{len(messages)} of {count} messages"
        options.setdefault("WaitTimeSeconds", 5)
        options.setdefault("AttributeNames", ["All"])
        options.setdefault("MaxNumberOfMessages", min(10, count - len(messages)))
        answer = sqs.receive_message(QueueUrl=url, **options)
        messages += answer.get("Messages", [])
    return messages


def eventually(check):
    end = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < end
        time.sleep(0.1)


def counts(url):
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return [int(attributes[name]) for name in names]


def code_of(call, **options):
    with pytest.raises(ClientError) as error:
        call(**options)
    return error.value.response["Error"]["Code"]


# Queues


def test_a_queue_has_an_address(queue):
    name = queue.rsplit("/", 1)[1]
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == queue


def test_creating_a_queue_again_returns_it(queue):
    assert sqs.create_queue(QueueName=queue.rsplit("/", 1)[1])["QueueUrl"] == queue


def test_an_unknown_queue_is_a_typed_error():
    with pytest.raises(sqs.exceptions.QueueDoesNotExist) as error:
        sqs.get_queue_url(QueueName="nothing-here")
    assert error.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.send_message(QueueUrl=f"{ENDPOINT}/000000000000/nothing-here", MessageBody="x")


def test_queues_are_listed_by_prefix_and_page():
    prefix = f"l{uuid.uuid4().hex[:8]}"
    urls = [sqs.create_queue(QueueName=f"{prefix}-{n}")["QueueUrl"] for n in range(5)]

    def listed():
        pages = sqs.get_paginator("list_queues").paginate(
            QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2}
        )
        return sorted(url for page in pages for url in page.get("QueueUrls", []))

    eventually(lambda: listed() == sorted(urls))


def test_attributes_of_a_queue(queue):
    attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert attributes["VisibilityTimeout"] == "30"
    assert attributes["QueueArn"].endswith(":" + queue.rsplit("/", 1)[1])
    assert attributes["ApproximateNumberOfMessages"] == "0"


def test_a_visibility_timeout_of_a_new_queue():
    attributes = {"VisibilityTimeout": "77"}
    url = sqs.create_queue(QueueName=f"q-{uuid.uuid4().hex[:12]}", Attributes=attributes)["QueueUrl"]
    read = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    assert read["Attributes"] == attributes


def test_creating_a_queue_with_other_attributes_is_refused(queue):
    name = queue.rsplit("/", 1)[1]
    code = code_of(sqs.create_queue, QueueName=name, Attributes={"VisibilityTimeout": "99"})
    assert code == "QueueAlreadyExists"


def test_names_may_have_capitals_and_80_characters():
    for name in [f"My_Queue-{uuid.uuid4().hex[:8]}", f"Q{uuid.uuid4().hex}".ljust(80, "x")]:
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=name)
        [message] = receive(url)
        assert message["Body"] == name


def test_attributes_as_libraries_set_them():
    attributes = {
        "MessageRetentionPeriod": "1209600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "VisibilityTimeout": "0",
        "FifoQueue": "true",
    }
    name = f"q-{uuid.uuid4().hex[:12]}.fifo"
    for _ in range(2):
        sqs.create_queue(QueueName=name, Attributes=attributes, tags={"team": "shop"})


@unchecked
def test_members_without_a_value_are_absent(queue):
    prefix = f"nothing-{uuid.uuid4().hex}"
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=prefix)
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue)
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "a", "MessageBody": "x"}])
    assert "Failed" not in sent
    wrong = [{"Id": "a", "ReceiptHandle": "invented"}]
    deleted = sqs.delete_message_batch(QueueUrl=queue, Entries=wrong)
    assert "Successful" not in deleted and deleted["Failed"][0]["Id"] == "a"


def test_an_unknown_attribute_is_refused(queue):
    code = code_of(sqs.get_queue_attributes, QueueUrl=queue, AttributeNames=["Nonsense"])
    assert code == "InvalidAttributeName"


# Messages


def test_a_message_goes_through_unchanged(queue):
    body = 'ünï "quoted" \\ \t\r\n 🦊 <xml/>'
    sent = sqs.send_message(QueueUrl=queue, MessageBody=body)
    assert sent["MD5OfMessageBody"] == hashlib.md5(body.encode()).hexdigest()
    [message] = receive(queue)
    assert message["Body"] == body
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    eventually(lambda: counts(queue) == [0, 0, 0])


def test_system_attributes_of_a_message(queue):
    before = int(time.time() * 1000) - 1000
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(queue)
    attributes = message["Attributes"]
    assert attributes["ApproximateReceiveCount"] == "1"
    for name in ["SentTimestamp", "ApproximateFirstReceiveTimestamp"]:
        assert before <= int(attributes[name]) <= before + PATIENCE * 1000


def test_only_requested_attributes_are_returned(queue):
    attribute = {"a": {"DataType": "String", "StringValue": "x"}}
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=attribute)
    [message] = receive(queue, AttributeNames=["SentTimestamp"])
    assert list(message["Attributes"]) == ["SentTimestamp"]
    assert "MessageAttributes" not in message


ATTRIBUTES = {
    "Color": {"DataType": "String", "StringValue": "röt"},
    "color": {"DataType": "String.custom", "StringValue": "line\nline"},
    "n": {"DataType": "Number", "StringValue": "12.5"},
    "foo.bytes": {"DataType": "Binary", "BinaryValue": b"\x00\x01\xff"},
}


def test_message_attributes_keep_their_names_types_and_values(queue):
    sent = sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=ATTRIBUTES)
    # Computed by moto and by boto3's documentation for exactly these attributes.
    assert sent["MD5OfMessageAttributes"] == "7b93d40a06caa88f04866ef8fe423ecc"
    [message] = receive(queue, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == ATTRIBUTES
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


def test_message_attributes_are_selected_by_prefix(queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=ATTRIBUTES)
    [message] = receive(queue, MessageAttributeNames=["foo.*"])
    assert list(message["MessageAttributes"]) == ["foo.bytes"]


def test_wrong_message_attributes_are_refused(queue):
    wrong = {"a": {"DataType": "Nonsense", "StringValue": "x"}}
    code = code_of(sqs.send_message, QueueUrl=queue, MessageBody="x", MessageAttributes=wrong)
    assert code == "InvalidParameterValue"


@unchecked
def test_characters_that_sqs_forbids_are_refused(queue):
    code = code_of(sqs.send_message, QueueUrl=queue, MessageBody="bad\x00body")
    assert code == "InvalidMessageContents"


def test_a_delay_holds_a_message_back(queue):
    begun = time.monotonic()
    sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=2)
    assert counts(queue)[2] == 1
    [message] = receive(queue)
    assert message["Body"] == "later"
    assert time.monotonic() - begun >= 1.9


@unchecked
def test_a_message_has_at_most_ten_attributes(queue):
    attributes = {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(11)}
    code = code_of(sqs.send_message, QueueUrl=queue, MessageBody="x", MessageAttributes=attributes)
    assert code == "InvalidParameterValue"


def test_an_empty_receive_has_no_messages(queue):
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    begun = time.monotonic()
    assert "Messages" not in sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=1)
    assert time.monotonic() - begun >= 0.9


def test_a_receive_with_wrong_numbers_is_refused(queue):
    for wrong in [{"MaxNumberOfMessages": 11}, {"WaitTimeSeconds": 21}, {"VisibilityTimeout": 43201}]:
        code = code_of(sqs.receive_message, QueueUrl=queue, **wrong)
        assert code in ("InvalidParameterValue", "ReadCountOutOfRange", "InvalidAttributeValue")


# Batches


def test_a_batch_is_sent_received_and_deleted(queue):
    entries = [{"Id": f"e{n}", "MessageBody": f"body {n}", "MessageAttributes": ATTRIBUTES} for n in range(10)]
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert not sent.get("Failed")
    ids = {entry["Id"]: entry["MessageId"] for entry in sent["Successful"]}
    assert sorted(ids) == sorted(entry["Id"] for entry in entries)
    messages = receive(queue, count=10)
    assert sorted(message["MessageId"] for message in messages) == sorted(ids.values())
    entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
    deleted = sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert len(deleted["Successful"]) == 10
    eventually(lambda: counts(queue) == [0, 0, 0])


@pytest.mark.parametrize(
    "entries, code",
    [
        ([], "EmptyBatchRequest"),
        ([{"Id": str(n), "MessageBody": "x"} for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a", "MessageBody": "x"}] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": "a b", "MessageBody": "x"}], "InvalidBatchEntryId"),
    ],
)
def test_a_wrong_batch_is_refused(queue, entries, code):
    given = code_of(sqs.send_message_batch, QueueUrl=queue, Entries=entries)
    assert given == f"AWS.SimpleQueueService.{code}"


def test_visibility_is_changed_in_batches(queue):
    entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(3)]
    sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    messages = receive(queue, count=3)
    entries = [
        {"Id": str(n), "ReceiptHandle": m["ReceiptHandle"], "VisibilityTimeout": 0} for n, m in enumerate(messages)
    ]
    assert len(sqs.change_message_visibility_batch(QueueUrl=queue, Entries=entries)["Successful"]) == 3
    again = receive(queue, count=3)
    assert {m["Attributes"]["ApproximateReceiveCount"] for m in again} == {"2"}


# Visibility


def test_a_visibility_timeout_of_zero_releases_a_message_and_counts(queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [first] = receive(queue)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    [second] = receive(queue)
    assert second["MessageId"] == first["MessageId"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"


def test_a_message_is_received_again_after_its_visibility_timeout(queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [first] = receive(queue, VisibilityTimeout=1)
    [second] = receive(queue)
    assert second["MessageId"] == first["MessageId"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"


def test_a_longer_visibility_timeout_keeps_a_message(queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [first] = receive(queue, VisibilityTimeout=2)
    handle = first["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=600)
    assert "Messages" not in sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=4)
    assert counts(queue) == [0, 1, 0]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle)
    eventually(lambda: counts(queue) == [0, 0, 0])


def test_deleting_twice_is_no_error(queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(queue)
    for _ in range(2):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_an_invented_handle_is_refused(queue):
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle="invented")


# FIFO


def test_messages_of_a_group_come_one_after_the_other(fifo):
    for n in range(3):
        sqs.send_message(QueueUrl=fifo, MessageBody=f"m{n}", MessageGroupId="g")
    seen = []
    while len(seen) < 3:
        [message] = receive(fifo)
        assert message["Attributes"]["MessageGroupId"] == "g"
        seen.append(message["Body"])
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    assert seen == ["m0", "m1", "m2"]


def test_a_deduplication_id_stores_one_message(fifo):
    ids = {
        sqs.send_message(
            QueueUrl=fifo, MessageBody=str(n), MessageGroupId="g", MessageDeduplicationId="a!(once)"
        )["MessageId"]
        for n in range(3)
    }
    # moto invents an id for the message that it does not store.
    assert len(ids) == 1 or not IS_LISA
    [message] = receive(fifo)
    assert message["Body"] == "0"
    assert message["Attributes"]["MessageDeduplicationId"] == "a!(once)"
    assert sum(counts(fifo)) == 1


def test_the_same_content_is_stored_once(fifo):
    ids = {
        sqs.send_message(QueueUrl=fifo, MessageBody="same", MessageGroupId="g")["MessageId"] for _ in range(2)
    }
    assert len(ids) == 1 or not IS_LISA
    assert sum(counts(fifo)) == 1


def test_a_message_id_is_the_id_of_an_entry(fifo):
    sent = [
        sqs.send_message(QueueUrl=fifo, MessageBody="a", MessageGroupId="a"),
        sqs.send_message(QueueUrl=fifo, MessageBody="b", MessageGroupId="b", MessageDeduplicationId="order:7"),
    ]
    messages = receive(fifo, count=2)
    assert {m["MessageId"] for m in messages} == {m["MessageId"] for m in sent}
    entries = [{"Id": m["MessageId"], "ReceiptHandle": m["ReceiptHandle"]} for m in messages]
    deleted = sqs.delete_message_batch(QueueUrl=fifo, Entries=entries)
    assert {entry["Id"] for entry in deleted["Successful"]} == {entry["Id"] for entry in entries}
    eventually(lambda: counts(fifo) == [0, 0, 0])


def test_a_fifo_queue_requires_a_group(fifo):
    assert code_of(sqs.send_message, QueueUrl=fifo, MessageBody="x") == "MissingParameter"


# Operations


def test_a_purge_removes_what_is_visible_or_delayed(queue):
    for n in range(20):
        sqs.send_message(QueueUrl=queue, MessageBody=str(n), DelaySeconds=0 if n % 2 else 600)
    sqs.purge_queue(QueueUrl=queue)
    eventually(lambda: counts(queue) == [0, 0, 0])


@unchecked
def test_nothing_that_is_sent_after_a_purge_is_removed(fifo):
    sqs.send_message(QueueUrl=fifo, MessageBody="held", MessageGroupId="g")
    [held] = receive(fifo, VisibilityTimeout=600)
    for n in range(3):
        sqs.send_message(QueueUrl=fifo, MessageBody=f"old {n}", MessageGroupId="g")
    sqs.purge_queue(QueueUrl=fifo)
    entries = [{"Id": str(n), "MessageBody": f"new {n}", "MessageGroupId": str(n)} for n in range(10)]
    sqs.send_message_batch(QueueUrl=fifo, Entries=entries)
    sqs.send_message(QueueUrl=fifo, MessageBody="next", MessageGroupId="g")
    bodies = {message["Body"] for message in receive(fifo, count=11)}
    assert bodies == {f"new {n}" for n in range(10)} | {"next"}
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=held["ReceiptHandle"])


# Differences between Lisa and SQS, each of which is in guides/sqs.md.


def test_differs_a_delay_of_years_is_accepted(queue):
    send = dict(QueueUrl=queue, MessageBody="x", DelaySeconds=31_000_000)
    if IS_LISA:
        sqs.send_message(**send)
        assert counts(queue) == [0, 0, 1]
    else:
        assert code_of(sqs.send_message, **send) == "InvalidParameterValue"


def test_differs_an_old_handle_cannot_delete(queue):
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [first] = receive(queue, VisibilityTimeout=1)
    [second] = receive(queue)
    if IS_LISA:
        with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"])
        assert counts(queue) == [0, 1, 0]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"])
    eventually(lambda: counts(queue) == [0, 0, 0])


def test_differs_a_queue_without_fifo_may_have_deduplication_ids(queue):
    if not IS_LISA:
        return
    send = dict(QueueUrl=queue, MessageBody="x", MessageDeduplicationId="order-7")
    assert len({sqs.send_message(**send)["MessageId"] for _ in range(2)}) == 1
    [message] = receive(queue, MessageAttributeNames=["lisa-id"])
    assert message["MessageAttributes"]["lisa-id"]["StringValue"] == "order-7"


def test_a_queue_is_changed_tagged_and_deleted(queue):
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "99", "DelaySeconds": "1"})
    read = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["VisibilityTimeout", "DelaySeconds"])
    assert read["Attributes"] == {"VisibilityTimeout": "99", "DelaySeconds": "1"}
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "shop", "stage": "test"})
    sqs.untag_queue(QueueUrl=queue, TagKeys=["stage"])
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "shop"}
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.delete_queue(QueueUrl=queue)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName=queue.rsplit("/", 1)[1])


def test_a_message_that_fails_too_often_is_in_the_dead_letter_queue(queue):
    def arn(url):
        read = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return read["Attributes"]["QueueArn"]

    policy = json.dumps({"deadLetterTargetArn": arn(queue), "maxReceiveCount": 2})
    name = f"q-{uuid.uuid4().hex[:12]}"
    source = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})["QueueUrl"]
    assert sqs.list_dead_letter_source_queues(QueueUrl=queue)["queueUrls"] == [source]
    sent = sqs.send_message(QueueUrl=source, MessageBody="bad")
    for _ in range(2):
        receive(source, VisibilityTimeout=0)
    assert "Messages" not in sqs.receive_message(QueueUrl=source, WaitTimeSeconds=1)
    [dead] = receive(queue, VisibilityTimeout=0)
    assert (dead["Body"], dead["MessageId"]) == ("bad", sent["MessageId"])
    sqs.start_message_move_task(SourceArn=arn(queue))
    [back] = receive(source)
    assert (back["Body"], back["MessageId"]) == ("bad", sent["MessageId"])
    eventually(lambda: counts(queue) == [0, 0, 0])


def test_messages_of_a_group_come_together_and_the_next_ones_wait_for_them(fifo):
    for n in range(4):
        sqs.send_message(QueueUrl=fifo, MessageBody=f"m{n}", MessageGroupId="g")
    eventually(lambda: counts(fifo)[0] == 4)
    first = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=2, WaitTimeSeconds=20)["Messages"]
    assert [message["Body"] for message in first] == ["m0", "m1"]
    assert "Messages" not in sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10)
    for message in first:
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    rest = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10, WaitTimeSeconds=20)["Messages"]
    assert [message["Body"] for message in rest] == ["m2", "m3"]


def test_differs_a_failed_message_goes_to_the_garbage_of_its_queue(queue):
    if not IS_LISA:
        return
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    for _ in range(16):
        [message] = receive(queue)
        handle = message["ReceiptHandle"]
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    assert counts(queue) == [0, 0, 0]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.start_message_move_task(SourceArn=arn)
    [message] = receive(queue)
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


# Access


@pytest.mark.skipif("SQS_KEY" not in os.environ, reason="the server accepts every signature")
def test_a_wrong_secret_or_key_is_refused(queue):
    other = connect(secret="another-secret-key")
    assert code_of(other.send_message, QueueUrl=queue, MessageBody="x") == "SignatureDoesNotMatch"
    other = connect(key="another")
    assert code_of(other.send_message, QueueUrl=queue, MessageBody="x") == "InvalidClientTokenId"
