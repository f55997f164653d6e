"""taskiq: a scheduler and a worker with 500 tasks at once in one process on uvloop, no results kept. It has no bulk call."""

import asyncio
import logging
import sys
from datetime import UTC, datetime, timedelta

import protocol
import uvloop
from taskiq import TaskiqScheduler
from taskiq.api import run_receiver_task, run_scheduler_task
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker


def program(address: str) -> tuple:
    url = f"redis://{address}"
    # The whole stream: a group begins at its end by default, and would not see what was sent before the first worker.
    broker = RedisStreamBroker(url, consumer_id="0", xread_count=500)
    source = ListRedisScheduleSource(url, buffer_size=500)
    tally = protocol.Tally()

    @broker.task(task_name="handle")
    async def handle(text: str) -> None:
        tally.handle(text)

    return broker, source, handle, tally


async def send(address: str, n: int, delay_ms: int, rate: int) -> None:
    broker, source, handle, _ = program(address)

    async def one(delay_ms: int = delay_ms) -> None:
        due = datetime.now(UTC) + timedelta(milliseconds=delay_ms)
        await handle.schedule_by_time(source, due, protocol.message(delay_ms))

    async def batch(size: int) -> None:
        await asyncio.gather(*(one() for _ in range(size)))

    await broker.startup()
    await asyncio.gather(*(one(protocol.WARM_UP_MS) for _ in range(50)))
    await protocol.send("single", n, rate, batch, one)


async def work(address: str) -> None:
    broker, source, _, tally = program(address)
    broker.is_worker_process = True
    await broker.startup()
    protocol.await_go()
    tally.watch()
    await asyncio.gather(
        run_receiver_task(broker, max_async_tasks=protocol.handlers(500)),
        # By default it looks for new schedules once a minute, so those of the next minutes would be late by up to one.
        run_scheduler_task(TaskiqScheduler(broker, [source]), interval=timedelta(seconds=1)),
    )


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    address, mode, *rest = sys.argv[1:]
    uvloop.run(send(address, *map(int, rest[1:])) if mode == "send" else work(address))
