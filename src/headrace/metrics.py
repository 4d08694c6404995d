"""``hr.metrics``: counters, gauges and histograms of your own, for functions and low-level tasks."""

from headrace.api.metrics import Counter, Gauge, Histogram, counter, gauge, histogram

__all__ = ["Counter", "Gauge", "Histogram", "counter", "gauge", "histogram"]
