"""Sends traces of requests to an OTLP receiver, in batches, from a thread of its own. For --otlp-traces-endpoint.

Needs the packages of the extra ``otel``, which are imported in that thread. Nothing here delays or fails a request:
what does not fit the buffer or cannot be sent is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver.request.tracing.spans import RequestSpans, spans_of
from mmserve.httpserver.request.tracing.trace import TraceRecord
from mmserve.monitoring.metrics.client import MetricsClient

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan

MAX_WAITING = 1024
"""Traces that wait to be sent, about 4 KiB each."""
MAX_BATCH = 64
LINGER_S = 1.0
"""A batch waits this long for more traces."""
CLOSE_S = 3.0
"""Time to send what is left when the worker ends."""

DropReason = Literal["buffer_full", "not_sent"]
logger = logging.getLogger(__name__)


class TraceExport:
    """A TraceSink. Made, called and closed on the event loop. ``process``: the name of this process."""

    def __init__(self, deployment: Deployment, process: str, metrics: MetricsClient) -> None:
        config = deployment.config
        assert config.otlp_traces_endpoint is not None
        self._endpoint = traces_url(config.otlp_traces_endpoint)
        self._resource = {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", "mmserve"),
            "service.version": deployment.version,
            "service.instance.id": process,
        }
        self._address = config.host, config.port
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._waiting = _Waiting(MAX_WAITING, LINGER_S)
        self._exporter: _Exporter | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_batches, name="otlp-export", daemon=True)
        self._thread.start()

    def __call__(self, record: TraceRecord) -> None:
        """Take the trace of a request that has ended. Keeps nothing of ``record`` itself."""
        epoch_ns = time.time_ns() - time.monotonic_ns()
        if not self._waiting.add(spans_of(record, *self._address, epoch_ns)):
            self._count_dropped(1, "buffer_full")

    async def aclose(self) -> None:
        """Send what is left, for at most CLOSE_S."""
        self._waiting.close()
        await asyncio.to_thread(self._stopped.wait, CLOSE_S)
        if self._exporter is not None:
            self._exporter.close()
        if num_left := self._waiting.clear():
            self._count_dropped(num_left, "not_sent")

    def _send_batches(self) -> None:
        """The thread. Ends when the buffer is closed and empty."""
        try:
            self._exporter = _Exporter(self._endpoint, self._resource)
            for batch in self._waiting.batches():
                if not _sent(self._exporter, batch):
                    with suppress(RuntimeError):  # the event loop has ended
                        self._loop.call_soon_threadsafe(self._count_dropped, len(batch), "not_sent")
        finally:
            self._stopped.set()

    def _count_dropped(self, count: int, reason: DropReason) -> None:
        self._metrics.add("otlp_traces_dropped", count, reason)


def traces_url(endpoint: str) -> str:
    """The URL to which traces are posted: of an endpoint without a path, the path that OTLP sets."""
    return endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"


def _sent(exporter: _Exporter, batch: Sequence[RequestSpans]) -> bool:
    try:
        return exporter.send(batch)
    except Exception:
        # Boundary of one batch: the next ones must be sent.
        logger.exception("%d traces were not sent", len(batch))
        return False


class _Waiting:
    """Traces that wait to be sent, at most ``limit``. Thread-safe; ``add`` never waits for long."""

    def __init__(self, limit: int, linger_s: float) -> None:
        self._limit = limit
        self._linger_s = linger_s
        self._traces: deque[RequestSpans] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def add(self, trace: RequestSpans) -> bool:
        """False if there is no room."""
        with self._changed:
            if self._closed or len(self._traces) >= self._limit:
                return False
            self._traces.append(trace)
            self._changed.notify()
            return True

    def batches(self) -> Iterator[list[RequestSpans]]:
        """Batches in order, until closed and empty. Waits for the first trace of a batch, and a little for more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._traces or self._closed)
                self._changed.wait_for(lambda: len(self._traces) >= MAX_BATCH or self._closed, self._linger_s)
                batch = [self._traces.popleft() for _ in range(min(MAX_BATCH, len(self._traces)))]
            if not batch:
                return
            yield batch

    def close(self) -> None:
        """Take no more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def clear(self) -> int:
        """Drop what waits. Returns how many."""
        with self._changed:
            count = len(self._traces)
            self._traces.clear()
            return count


class _Exporter:
    """Makes spans with OpenTelemetry's SDK and posts them. Used by one thread. ``resource``: attributes of the sender.

    The SDK's environment variables apply, such as OTEL_EXPORTER_OTLP_HEADERS and OTEL_TRACES_SAMPLER.
    """

    def __init__(self, endpoint: str, resource: dict[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        ended: list[ReadableSpan] = []

        class Collected(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                ended.append(span)

        self._ended = ended
        self._exporter = OTLPSpanExporter(endpoint=endpoint)
        provider = TracerProvider(resource=Resource.create(dict(resource)), shutdown_on_exit=False)
        provider.add_span_processor(Collected())
        self._tracer = provider.get_tracer("mmserve", resource["service.version"])

    def send(self, traces: Sequence[RequestSpans]) -> bool:
        """False if the receiver did not take them, after retries."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        for trace in traces:
            self._make_spans(trace)
        spans, self._ended[:] = tuple(self._ended), ()
        return not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """From any thread. Ends the retries of ``send``."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _make_spans(self, trace: RequestSpans) -> None:
        from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

        request = self._tracer.start_span(
            trace.name,
            context=_client_context(trace.traceparent),
            kind=SpanKind.SERVER,
            attributes=trace.attributes,
            start_time=trace.start_ns,
        )
        if trace.failed:
            request.set_status(Status(StatusCode.ERROR))
        spans: dict[str | None, Span] = {None: request}
        for stage in trace.stages:
            parent = spans.get(stage.parent, request)
            spans[stage.name] = self._tracer.start_span(
                stage.name, context=set_span_in_context(parent), start_time=stage.start_ns
            )
        for stage in trace.stages:
            spans[stage.name].end(stage.end_ns)
        request.end(trace.end_ns)


def _client_context(traceparent: str) -> Context:
    """The context of the client's span; an empty one if the header is missing or malformed."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, context=Context())
