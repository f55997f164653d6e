"""The protocol between the Python programs and the driver; `protocol.rs` describes it in full."""

import os
import sys
import threading
import time

SIZE = 100
# The messages of one call of a bulk send.
BULK = 500
# The delay of messages that open connections and load scripts before the measurement: never due.
WARM_UP_MS = 7_200_000


def message(delay_ms: int) -> str:
    """A message of 100 bytes that begins with the Unix time in ms at which it is due."""
    return f"{int(time.time() * 1000) + delay_ms} ".ljust(SIZE, "x")


def handlers(default: int) -> int:
    """The handlers of a worker at once."""
    return int(sys.argv[3]) if len(sys.argv) > 3 else default


def await_go() -> None:
    """Reports that the program is ready, and waits for the driver."""
    print("ready", flush=True)
    sys.stdin.readline()


def sent(seconds: float) -> None:
    """Reports how long the sending took, and waits for the end."""
    print(f"sent {seconds:.6f}", flush=True)
    sys.stdin.read()


class Tally:
    """The messages that the handler has seen. Threads report to the driver, and end the process when the driver says so."""

    def __init__(self) -> None:
        self.late: list[int] = []
        self.last = 0.0

    def handle(self, text: str) -> None:
        """The whole work of a handler."""
        now = time.time() * 1000
        self.late.append(int(now) - int(text.split(" ", 1)[0]))
        self.last = now

    def watch(self) -> None:
        """Starts to report to the driver."""
        threading.Thread(target=self._tell, daemon=True).start()
        threading.Thread(target=self._end, daemon=True).start()

    def _tell(self) -> None:
        told = 0
        while True:
            time.sleep(0.02)
            count = len(self.late)
            if count > told:
                told = count
                print(f"handled {count} {self.last:.3f}", flush=True)

    def _end(self) -> None:
        sys.stdin.read()
        print("late", *self.late, flush=True)
        os._exit(0)


async def send(how: str, n: int, rate: int, batch, one) -> None:
    """Waits for the driver, sends `n` messages as it asks (see `paced` and `callers`), and reports."""
    await_go()
    start = time.monotonic()
    if rate:
        await paced(n, rate, batch)
    elif how == "bulk":
        for _ in range(n // BULK):
            await batch(BULK)
    else:
        await callers(n, 50, one)
    sent(time.monotonic() - start)


async def paced(n: int, rate: int, send) -> None:
    """Calls `send(k)` every 10 ms so that `n` go out at `rate` a second."""
    import asyncio

    per_tick = max(1, rate // 100)
    start, out = time.monotonic(), 0
    while out < n:
        await send(min(per_tick, n - out))
        out += per_tick
        await asyncio.sleep(max(0, start + out / rate - time.monotonic()))


async def callers(n: int, width: int, one) -> None:
    """Calls `one()` `n` times from `width` callers at once, each of which waits for its own."""
    import asyncio

    async def caller() -> None:
        for _ in range(n // width):
            await one()

    await asyncio.gather(*(caller() for _ in range(width)))
