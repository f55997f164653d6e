"""Uses each role through the generated client: `client.py BASE_URL TOKEN`."""

import base64
import io
import sys

from lisa import AuthenticatedClient
from lisa import models as m
from lisa.api.doctor import examine_topic, repair_topic
from lisa.api.garbage import purge_garbage, requeue_garbage
from lisa.api.groups import drain_group, keep_group, pause_group, resume_group
from lisa.api.jobs import list_jobs, run_job
from lisa.api.messages import (
    cancel_message,
    deliver_message_now,
    get_message,
    list_messages,
    reschedule_message,
    send_batch,
    send_message,
)
from lisa.api.schedules import list_schedules
from lisa.api.stats import get_stats
from lisa.api.topics import list_topics, pause_topic, resume_topic, show_topic
from lisa.api.workers import list_workers
from lisa.types import UNSET, File

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])


def typed(model, operation, *arguments, **named):
    """Calls an operation, and checks that its response is read as this model."""
    answer = operation.sync(*arguments, client=client, **named)
    assert isinstance(answer, model), f"{operation.__name__}: {answer}"
    return answer


# Send, look up, cancel: every byte is kept.
payload = bytes(range(256))
file = File(io.BytesIO(payload))
sent = typed(m.Sent, send_message, "orders", body=file, lisa_id="python", lisa_delay="1h")
assert sent.outcome == m.SentOutcome.WAITING, sent
message = typed(m.Message, get_message, "orders", "python")
assert message.state == m.State.WAITING and message.groups[0].group == "billing", message
assert message.payload is UNSET and base64.b64decode(message.payload_base64) == payload, message
cancelled = typed(m.Cancelled, cancel_message, "orders", "python")
assert base64.b64decode(cancelled.payload_base64) == payload, cancelled
problem = typed(m.Problem, get_message, "orders", "python")
assert (problem.code, problem.ended) == ("not_found", m.End.CANCELLED), problem

# A batch has a result for each message, including one that is refused.
good = m.BatchMessage(payload={"order": 7}, delay="1h", id="python-7", priority=3)
bad = m.BatchMessage(payload_text="x", delay="soon")
results = send_batch.sync("orders", client=client, body=[good, bad])
assert [type(result) for result in results] == [m.Sent, m.BatchFailure], results
assert results[1].error.code == "invalid", results
message = typed(m.Message, get_message, "orders", "python-7")
assert (message.payload, message.priority) == ('{"order":7}', 3), message
typed(m.Sent, reschedule_message, "orders", "python-7", body=m.NewDue(delay="2h"))

# Every answer of the manager.
stats = typed(m.StatsList, get_stats).topics[0]
assert (stats.topic, stats.waiting, stats.groups[0].group) == ("orders", 1, "billing"), stats
typed(m.TopicList, list_topics)
settings = typed(m.TopicView, show_topic, "orders").settings
assert (settings.lease, settings.merge) == ("30s", m.Merge.LAST), settings
page = typed(m.MessagePage, list_messages, "orders", state=m.State.WAITING)
assert [message.id for message in page.messages] == ["python-7"], page
typed(m.TopicPaused, pause_topic, "orders")
typed(m.TopicPaused, resume_topic, "orders")
typed(m.GroupPaused, pause_group, "orders", "billing")
typed(m.GroupPaused, resume_group, "orders", "billing")
assert typed(m.GroupRetired, drain_group, "orders", "billing").retiring == m.Retirement.DRAIN
assert typed(m.GroupRetired, keep_group, "orders", "billing").retiring is None
some = m.GarbageSelection(all_=True, dry_run=True)
typed(m.GarbageResult, requeue_garbage, "orders", "billing", body=some)
typed(m.GarbageResult, purge_garbage, "orders", "billing", body=some)
typed(m.Checkup, examine_topic, "orders")
typed(m.Checkup, repair_topic, "orders")
reports = {
    "reclaim": m.ReclaimReport,
    "clean": m.CleanReport,
    "statistics": m.StatisticsReport,
    "sweep": m.SweepReport,
    "doctor": m.DoctorReport,
}
assert {job.name for job in typed(m.JobList, list_jobs).jobs} == set(reports)
for name, report in reports.items():
    run = typed(m.LastRun, run_job, name)
    assert run.ok and isinstance(run.report, report), run
typed(m.ScheduleList, list_schedules)
typed(m.Workers, list_workers)
typed(m.Sent, deliver_message_now, "orders", "python-7")
print("python: ok")
