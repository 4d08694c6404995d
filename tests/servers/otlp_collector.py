"""A collector for OTLP over HTTP, on loopback: decodes what comes with OpenTelemetry's own protobufs, and keeps it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpCollector:
    """What has come. ``status`` is what requests are answered with; while ``open`` isn't set, they aren't answered."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.traces: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.open = threading.Event()
        self.open.set()
        self.endpoint = ""

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        data = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        self.headers.append(headers)
        if path == "/v1/metrics":
            self.metrics.append(ExportMetricsServiceRequest.FromString(data))
        elif path == "/v1/traces":
            self.traces.append(ExportTraceServiceRequest.FromString(data))
        else:
            raise AssertionError(f"nobody sends to {path}")

    def last_metrics(self) -> dict[str, Any]:
        """The metrics that came last, by name."""
        (resource,) = self.metrics[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def spans(self) -> list[Any]:
        """All spans that have come."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def otlp_collector() -> Iterator[OtlpCollector]:
    """Run one, on a free port."""
    collector = OtlpCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if collector.status == 200:
                collector.take(self.path, {key.lower(): value for key, value in self.headers.items()}, body)
            collector.open.wait(60)
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        collector.open.set()
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(of: Any) -> dict[str, Any]:
    """Attributes of a point, a span or a resource."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of.attributes}
