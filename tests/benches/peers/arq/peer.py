"""arq: a worker with 500 jobs at once on uvloop, no results kept. It has no bulk call: 50 callers send at once."""

import asyncio
import sys
from datetime import timedelta

import protocol
import uvloop
from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker


def settings(address: str) -> RedisSettings:
    host, port = address.split(":")
    return RedisSettings(host=host, port=int(port))


async def send(address: str, n: int, delay_ms: int, rate: int) -> None:
    pool = await create_pool(settings(address))
    delay = timedelta(milliseconds=delay_ms)

    async def one(delay: timedelta = delay) -> None:
        await pool.enqueue_job("handle", protocol.message(delay_ms), _defer_by=delay)

    async def batch(size: int) -> None:
        await asyncio.gather(*(one() for _ in range(size)))

    warm_up = timedelta(milliseconds=protocol.WARM_UP_MS)
    await asyncio.gather(*(one(warm_up) for _ in range(50)))
    await protocol.send("single", n, rate, batch, one)


async def work(address: str) -> None:
    tally = protocol.Tally()

    async def handle(_context: dict, text: str) -> None:
        tally.handle(text)

    # By default it takes at most 500 jobs every half second, which would limit it to 1,000 per second.
    worker = Worker(
        [func(handle, name="handle", keep_result=0)],
        redis_settings=settings(address),
        max_jobs=protocol.handlers(500),
        poll_delay=0.05,
        queue_read_limit=1000,
        handle_signals=False,
    )
    protocol.await_go()
    tally.watch()
    await worker.async_run()


if __name__ == "__main__":
    address, mode, *rest = sys.argv[1:]
    uvloop.run(send(address, *map(int, rest[1:])) if mode == "send" else work(address))
