"""Metrics as Prometheus' text. Each scrape builds a new collector from the present status, so nothing is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from headrace.coordinator.exposition import by_name, help_of
from headrace.coordinator.listener import Response
from headrace.coordinator.messages import Series
from headrace.core.metrics import SECONDS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def answer(series: Iterable[Series]) -> Response:
    return Response(render(series), CONTENT_TYPE)


def render(series: Iterable[Series]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(series))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, series: Iterable[Series]) -> None:
        self._series = series

    @override
    def collect(self) -> Iterator[Metric]:
        for found in by_name(self._series).values():
            yield _family(found)


def _family(found: Sequence[Series]) -> Metric:
    first = found[0]
    labels = sorted({label for one in found for label in one.labels})
    if first.kind == "histogram":
        histogram = HistogramMetricFamily(first.name, help_of(first), labels=labels)
        for one in found:
            bounds = (*map(str, one.bounds or SECONDS), "+Inf")
            totals = list(zip(bounds, accumulate(one.buckets), strict=True))
            histogram.add_metric(_values(one, labels), totals, one.value)
        return histogram
    kind = CounterMetricFamily if first.kind == "counter" else GaugeMetricFamily
    family = kind(first.name, help_of(first), labels=labels)
    for one in found:
        family.add_metric(_values(one, labels), one.value)
    return family


def _values(one: Series, labels: list[str]) -> list[str]:
    return [one.labels.get(label, "") for label in labels]
