"""A Celery application over its SQS transport: sends a task that is due later, and a worker runs it.

Usage: celery_app.py ENDPOINT QUEUE DIRECTORY. Celery speaks to the endpoint through boto3 and through a client of its own.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

from celery import Celery

ENDPOINT, QUEUE, DIRECTORY = os.environ.get("CELERY_ARGUMENTS", " ".join(sys.argv[1:])).split()
KEY, SECRET = (quote(os.environ.get(name, "test"), safe="") for name in ("SQS_KEY", "SQS_SECRET"))
DELAY = 3
PATIENCE = 90

app = Celery("app", broker=f"sqs://{KEY}:{SECRET}@{ENDPOINT.removeprefix('http://')}")
app.conf.update(
    task_default_queue=QUEUE,
    broker_transport_options={
        "is_secure": False,
        "region": "eu-central-1",
        "visibility_timeout": 60,
        "wait_time_seconds": 5,
    },
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="record")
def record(text):
    Path(DIRECTORY, text).write_text(str(time.time()))


def main():
    os.environ["CELERY_ARGUMENTS"] = " ".join((ENDPOINT, QUEUE, DIRECTORY))
    begun = time.time()
    record.delay("now")
    record.apply_async(("later",), countdown=DELAY)
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--pool", "solo", "--loglevel", "info"]
    here = Path(__file__).parent
    with open(Path(DIRECTORY, "worker.log"), "w") as log:
        worker = subprocess.Popen(command, cwd=here, stdout=log, stderr=log)
    try:
        files = [Path(DIRECTORY, name) for name in ("now", "later")]
        while not all(file.exists() and file.read_text() for file in files):
            assert time.time() < begun + PATIENCE and worker.poll() is None, Path(DIRECTORY, "worker.log").read_text()
            time.sleep(0.1)
        now, later = (float(file.read_text()) - begun for file in files)
        assert later >= DELAY, (now, later)
        print(f"celery: a task ran after {now:.2f} s, one with countdown={DELAY} after {later:.2f} s")
    finally:
        worker.terminate()
        worker.wait(30)


if __name__ == "__main__":
    main()
