"""Servers that tests put in front of the relay, or in its place. `LISA_URL` is that of `lisa-manager dev`."""

from __future__ import annotations

import http.server
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Optional

import httpx

URL = os.environ["LISA_URL"]
HOUR = timedelta(hours=1)
WAIT = timedelta(seconds=20)

Served = tuple[int, dict[str, str], bytes]
Answer = Callable[[int, Any, bytes], Optional[Served]]
HTML: Served = (200, {"content-type": "text/html"}, b"<html>Please log in</html>")


def eventually(holds: Callable[[], Any], what: str) -> Any:
    for _ in range(600):
        result = holds()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(f"never: {what}")


class Server:
    """A server that counts requests and answers with a function, or breaks the connection if that returns None."""

    def __init__(self, answer: Answer, port: int = 0):
        self.count = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_all(handler) -> None:
                body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
                self.count += 1
                result = answer(self.count, handler, body)
                if result is None:
                    handler.close_connection = True
                    return
                status, headers, content = result
                handler.send_response(status)
                for name, value in {**headers, "content-length": str(len(content))}.items():
                    handler.send_header(name, value)
                handler.end_headers()
                handler.wfile.write(content)

            do_GET = do_POST = do_DELETE = do_PATCH = handle_all

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def serve(*args: Any, **named: Any) -> Iterator[Server]:
    server = Server(*args, **named)
    thread = threading.Thread(target=server.server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.server.shutdown()
        thread.join()
        server.server.server_close()


def forward(handler: Any, body: bytes) -> Served:
    """Passes a request on to the relay."""
    dropped = {"host", "content-length", "connection"}
    headers = {name: value for name, value in handler.headers.items() if name.lower() not in dropped}
    reply = httpx.request(handler.command, URL + handler.path, headers=headers, content=body, timeout=40)
    return reply.status_code, {"content-type": reply.headers["content-type"]}, reply.content
