"""A Dramatiq application over dramatiq_sqs: a worker runs an actor at once, after a delay, and again after it failed.

The broker is that of the README of dramatiq_sqs, without the middleware that opens a port. The variables of the AWS SDKs have
the endpoint and the credentials.
"""

import logging
import time

import dramatiq
from dramatiq.middleware import AgeLimit, Callbacks, Pipelines, Retries, TimeLimit
from dramatiq_sqs import SQSBroker

DELAY = 2
# The traceback of the failed attempt.
logging.disable(logging.ERROR)
broker = SQSBroker(
    namespace="dramatiq_sqs_tests",
    middleware=[
        AgeLimit(),
        TimeLimit(),
        Callbacks(),
        Pipelines(),
        Retries(min_backoff=1000, max_backoff=900000, max_retries=96),
    ],
)
dramatiq.set_broker(broker)
runs = {}


@dramatiq.actor
def record(text):
    runs.setdefault(text, []).append(time.time())
    if text == "fails" and len(runs[text]) == 1:
        raise ValueError("the first attempt")


begun = time.time()
record.send("now")
record.send("fails")
record.send_with_options(args=("later",), delay=DELAY * 1000)
worker = dramatiq.Worker(broker, worker_threads=2)
worker.start()
try:
    while not ("now" in runs and "later" in runs and len(runs.get("fails", [])) == 2):
        assert time.time() < begun + 90, runs
        time.sleep(0.1)
    broker.join("default", timeout=90)
finally:
    worker.stop()
later = runs["later"][0] - begun
assert later >= DELAY, later
print(f"dramatiq: an actor ran after {runs['now'][0] - begun:.2f} s, one with delay={DELAY} after {later:.2f} s")
