"""streaq: a worker with 500 at once on uvloop, no results kept, bulk by `enqueue_many`."""

import sys
from datetime import timedelta

import protocol
import uvloop
from streaq import Worker


def program(address: str, concurrency: int = 500) -> tuple:
    worker = Worker(
        redis_url=f"redis://{address}",
        concurrency=concurrency,
        handle_signals=False,
        anyio_kwargs={"use_uvloop": True},
    )
    tally = protocol.Tally()

    @worker.task(ttl=0, silent=True)
    async def handle(text: str) -> None:
        tally.handle(text)

    return worker, handle, tally


async def send(address: str, how: str, n: int, delay_ms: int, rate: int) -> None:
    worker, handle, _ = program(address)
    delay = timedelta(milliseconds=delay_ms)

    async def batch(size: int, delay: timedelta = delay) -> None:
        tasks = [handle.enqueue(protocol.message(delay_ms)).start(delay=delay) for _ in range(size)]
        await worker.enqueue_many(tasks)

    async def one() -> None:
        await handle.enqueue(protocol.message(delay_ms)).start(delay=delay)

    async with worker:
        await batch(1, timedelta(milliseconds=protocol.WARM_UP_MS))
        await protocol.send(how, n, rate, batch, one)


if __name__ == "__main__":
    address, mode, *rest = sys.argv[1:]
    if mode == "send":
        uvloop.run(send(address, rest[0], *map(int, rest[1:])))
    else:
        worker, _, tally = program(address, protocol.handlers(500))
        protocol.await_go()
        tally.watch()
        worker.run_sync()
