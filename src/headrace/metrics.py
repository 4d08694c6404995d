"""``hr.metrics``: your own counters, gauges and histograms, for functions and low-level tasks."""

from headrace.api.tasks import Counter, Gauge, Histogram, counter, gauge, histogram

__all__ = ["Counter", "Gauge", "Histogram", "counter", "gauge", "histogram"]
