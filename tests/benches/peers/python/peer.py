"""Lisa through its Python client, on uvloop: bulk by `send_many` of 500, 500 handlers at once."""

import sys
from datetime import timedelta

import protocol
import uvloop
from lisa_relay import AsyncDelivery, AsyncLisa, LisaError


def client(address: str) -> AsyncLisa:
    producer, gateway = address.split(",")
    return AsyncLisa(producer, gateway=gateway)


async def send(address: str, how: str, n: int, delay_ms: int, rate: int) -> None:
    async with client(address) as lisa:
        delay = timedelta(milliseconds=delay_ms)

        async def batch(size: int) -> None:
            messages = [{"payload": protocol.message(delay_ms), "delay": delay} for _ in range(size)]
            for result in await lisa.send_many("bench", messages):
                if isinstance(result, LisaError):
                    raise result

        async def one(delay: timedelta = delay) -> None:
            await lisa.send("bench", protocol.message(delay_ms), delay=delay)

        await one(timedelta(milliseconds=protocol.WARM_UP_MS))
        await protocol.send(how, n, rate, batch, one)


async def work(address: str) -> None:
    tally = protocol.Tally()

    async def handle(delivery: AsyncDelivery) -> None:
        tally.handle(delivery.text())

    async with client(address) as lisa:
        protocol.await_go()
        tally.watch()
        await lisa.work("bench", handle, concurrency=protocol.handlers(500))


if __name__ == "__main__":
    address, mode, *rest = sys.argv[1:]
    uvloop.run(send(address, rest[0], *map(int, rest[1:])) if mode == "send" else work(address))
