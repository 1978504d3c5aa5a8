"""An OTLP receiver: an HTTP server that decodes the traces that are posted to it. Needs the extra ``otel``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    """``spans``: those received. ``bodies``: the same, as they were posted. ``status``: the answer to each post."""

    def __init__(self) -> None:
        self.status = 200
        self.gate = threading.Event()
        """Posts are answered while it is set."""
        self.gate.set()
        self.posts = 0
        self.paths: set[str] = set()
        self.bodies: list[bytes] = []
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.url = ""

    def receive(self, path: str, body: bytes) -> None:
        self.posts += 1
        self.gate.wait()
        if self.status != 200:
            return
        self.paths.add(path)
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(values_of(resource.resource.attributes))
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)

    def requests(self) -> list[Span]:
        """The spans of requests."""
        return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

    def children(self, parent: Span) -> dict[str, Span]:
        return {span.name: span for span in self.spans if span.parent_span_id == parent.span_id}


def values_of(attributes: Any) -> dict[str, Any]:
    """Attributes by key."""
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)


@contextmanager
def receiver() -> Iterator[Receiver]:
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.receive(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(received.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield received
        finally:
            received.gate.set()
            server.shutdown()
            thread.join()
