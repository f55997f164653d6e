"""A receiver of OTLP over HTTP, and a webhook: both remember what they get."""

import contextlib
import gzip
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}


def value_of(any_value):
    kind = any_value.WhichOneof("value")
    return getattr(any_value, kind) if kind else None


def attributes_of(pairs):
    names = [pair.key for pair in pairs]
    assert len(names) == len(set(names)), f"an attribute is there twice: {names}"
    return {pair.key: value_of(pair.value) for pair in pairs}


class Span:
    """A span as a backend would store it."""

    def __init__(self, span, scope, schema, resource):
        self.name = span.name
        self.kind = KINDS[span.kind]
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.attributes = attributes_of(span.attributes)
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.is_error = span.status.code == 2
        self.scope, self.schema, self.resource = scope, schema, resource
        self.text = str(span)

    @property
    def of(self):
        return self.attributes.get("messaging.operation.type")

    @property
    def message(self):
        return self.attributes.get("messaging.message.id")

    def __repr__(self):
        return f"{self.kind} {self.name!r} {self.trace[:6]}/{self.id[:6]} parent {self.parent[:6] or '-'} links {[l[1][:6] for l in self.links]} {self.attributes}"


class Server(ThreadingHTTPServer):
    """A server that runs until it is stopped, and may be started again at the same port."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, handler, port=0):
        self.connections = []
        super().__init__(("127.0.0.1", port), handler)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def get_request(self):
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def stop(self):
        """Also closes the connections that clients keep open."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Receiver:
    def __init__(self):
        self.lock, self.spans, self.requests = threading.Lock(), [], []
        receiver = self

        class Handler(Quiet):
            def do_POST(self):
                body = self.body()
                assert self.path == "/v1/traces", self.path
                assert self.headers["Content-Type"] == "application/x-protobuf", self.headers["Content-Type"]
                coding = self.headers["Content-Encoding"]
                if coding == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                with receiver.lock:
                    receiver.requests.append((coding, dict(self.headers)))
                    for of_resource in request.resource_spans:
                        resource = attributes_of(of_resource.resource.attributes)
                        for of_scope in of_resource.scope_spans:
                            scope = (of_scope.scope.name, of_scope.scope.version)
                            receiver.spans += [Span(span, scope, of_scope.schema_url, resource) for span in of_scope.spans]
                self.answer(200, ExportTraceServiceResponse().SerializeToString(), [("Content-Type", "application/x-protobuf")])

        self.handler = Handler
        self.server = Server(Handler)
        self.port = self.server.port

    def stop(self):
        self.server.stop()

    def start_again(self):
        self.server = Server(self.handler, self.port)

    def take(self):
        """Returns all spans, and forgets them."""
        with self.lock:
            spans, self.spans = self.spans, []
            return spans

    def wait(self, what, is_there, seconds=60):
        """Waits for spans, and returns all that arrived since the last call."""
        end = time.monotonic() + seconds
        while True:
            with self.lock:
                spans = list(self.spans)
            if is_there(spans):
                return self.take()
            assert time.monotonic() < end, f"{what}: {spans}"
            time.sleep(0.05)


class Webhook:
    def __init__(self):
        self.lock, self.seen, self.refuse = threading.Lock(), [], set()
        webhook = self

        class Handler(Quiet):
            def do_POST(self):
                self.body()
                headers = {name.lower(): value for name, value in self.headers.items()}
                with webhook.lock:
                    webhook.seen.append(headers)
                    is_refused = headers["webhook-id"] in webhook.refuse
                    webhook.refuse.discard(headers["webhook-id"])
                self.answer(503 if is_refused else 204)

        self.server = Server(Handler)
        self.port = self.server.port

    def of(self, id):
        with self.lock:
            return [headers for headers in self.seen if headers["webhook-id"] == id]

    def count(self):
        with self.lock:
            return len(self.seen)
