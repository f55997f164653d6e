"""celery on its Redis broker: results off, no gossip, mingle or events. It has no bulk call and sends synchronously."""

import sys
import time

import protocol
from celery import Celery

BROKER = "redis://{}/0"


def app(address: str) -> Celery:
    celery = Celery("bench", broker=BROKER.format(address))
    celery.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=64,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
    )
    return celery


def send(address: str, n: int, delay_ms: int, rate: int) -> None:
    celery = app(address)

    @celery.task(name="handle")
    def handle(text: str) -> None: ...

    with celery.producer_or_acquire() as producer:

        def one(delay_ms: int = delay_ms) -> None:
            handle.apply_async((protocol.message(delay_ms),), countdown=delay_ms / 1000, producer=producer)

        one(protocol.WARM_UP_MS)
        protocol.await_go()
        start = time.monotonic()
        for index in range(n):
            one()
            if rate:
                time.sleep(max(0, start + (index + 1) / rate - time.monotonic()))
        protocol.sent(time.monotonic() - start)


def work(address: str) -> None:
    celery = app(address)
    tally = protocol.Tally()

    @celery.task(name="handle")
    def handle(text: str) -> None:
        tally.handle(text)

    protocol.await_go()
    tally.watch()
    celery.start(
        ["--quiet", "worker", "--pool=threads", f"--concurrency={protocol.handlers(4)}", "--loglevel=ERROR"]
        + ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    )


if __name__ == "__main__":
    address, mode, *rest = sys.argv[1:]
    if mode == "send":
        send(address, *map(int, rest[1:]))
    else:
        work(address)
