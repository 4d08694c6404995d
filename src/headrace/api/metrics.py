"""Counters, gauges and histograms for users' code. They are plain values; the calling task holds the numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import final

from typing_extensions import override

from headrace.core.errors import DeclarationError, UsageError
from headrace.core.metric_table import SECONDS
from headrace.core.user_metrics import Cell, Kind, entered

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")
_TAKEN = frozenset({"app", "stage", "task", "container", "le", "name", "kind", "value", "buckets"})
_BUCKETS_MAX = 50


class _Metric:
    """The base of all three."""

    __slots__ = ("_like",)

    def __init__(self, name: str, kind: Kind, text: str, bounds: Sequence[float] = ()) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("headrace_"):
            raise DeclarationError(
                f"{name!r} is not a valid metric name",
                hint='use letters, digits and "_", up to 100, as in "slow_views"; "headrace_" is for Headrace\'s own',
            )
        if kind == "counter" and not name.endswith("_total"):
            name += "_total"  # Prometheus's convention for counters
        self._like = Cell(name, kind, text or "A metric of the app's own.", {}, tuple(bounds))

    @property
    def name(self) -> str:
        """The name in ``/metrics``; a counter's ends with ``_total``."""
        return self._like.name

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


@final
class Counter(_Metric):
    """A number that only grows, from ``hr.metrics.counter``."""

    __slots__ = ()

    def add(self, by: float = 1, **labels: object) -> None:
        """Add to the counter. Does nothing outside a running app.

        Parameters
        ----------
        by
            The amount, which must not be negative.
        **labels
            Labels, such as ``country="PT"``. Each combination is a separate series, so keep their number small.
        """
        if (metrics := entered()) is not None:
            if not 0 <= by < math.inf:
                raise UsageError(
                    f"{self.name}: a counter only grows, so it can't be increased by {by!r}", hint="use a gauge"
                )
            metrics.add(self._like, _checked(labels), by)


@final
class Gauge(_Metric):
    """A number that goes up and down, from ``hr.metrics.gauge``."""

    __slots__ = ()

    def set(self, value: float, **labels: object) -> None:
        """Set the gauge. Does nothing outside a running app.

        Parameters
        ----------
        value
            The number.
        **labels
            Labels, as for ``Counter.add``.
        """
        if (metrics := entered()) is not None:
            metrics.set(self._like, _checked(labels), value)


@final
class Histogram(_Metric):
    """The number of values in each range, and their sum, from ``hr.metrics.histogram``."""

    __slots__ = ()

    def observe(self, value: float, **labels: object) -> None:
        """Count a value. Does nothing outside a running app.

        Parameters
        ----------
        value
            The value.
        **labels
            Labels, as for ``Counter.add``.
        """
        if (metrics := entered()) is not None:
            metrics.observe(self._like, _checked(labels), value)


def counter(name: str, help: str = "") -> Counter:
    """Declare a counter for functions and low-level tasks. Repeated declarations of a name mean the same counter.

    Parameters
    ----------
    name
        Its name. In ``/metrics`` it ends with ``_total``.
    help
        Its description in ``/metrics``.

    Returns
    -------
    Counter

    Examples
    --------
    >>> slow = hr.metrics.counter("slow_views", "Views that took over a second.")
    >>> def seconds(row):
    ...     if row["ms"] > 1000:
    ...         slow.add()
    ...     return {"seconds": row["ms"] / 1000}
    >>> views.map(seconds, schema={"seconds": pl.Float64})
    Stream('map-1': seconds Float64)
    """
    return Counter(name, "counter", help)


def gauge(name: str, help: str = "") -> Gauge:
    """Declare a gauge for functions and low-level tasks.

    Parameters
    ----------
    name
        Its name.
    help
        Its description in ``/metrics``.

    Returns
    -------
    Gauge

    Examples
    --------
    >>> rules = hr.metrics.gauge("rules_loaded", "Rules that the model has.")
    >>> rules.set(12)
    """
    return Gauge(name, "gauge", help)


def histogram(name: str, help: str = "", *, buckets: Sequence[float] = SECONDS) -> Histogram:
    """Declare a histogram for functions and low-level tasks.

    Parameters
    ----------
    name
        Its name.
    help
        Its description in ``/metrics``.
    buckets
        The rising upper bounds of its buckets; one more bucket takes all higher values. The default suits seconds, from
        1 ms to a minute.

    Returns
    -------
    Histogram

    Examples
    --------
    >>> hr.metrics.histogram("basket_euros", "What a basket is worth.", buckets=[1, 10, 100, 1000])
    Histogram('basket_euros')
    """
    bounds = tuple(buckets)
    rising = all(low < high for low, high in pairwise(bounds))
    if not 0 < len(bounds) <= _BUCKETS_MAX or not rising or not all(map(math.isfinite, bounds)):
        raise DeclarationError(
            f"histogram: buckets={list(bounds)!r} aren't rising numbers, up to {_BUCKETS_MAX}",
            hint="write their upper bounds, as in buckets=[1, 10, 100]",
        )
    return Histogram(name, "histogram", help, bounds)


def _checked(labels: dict[str, object]) -> dict[str, object]:
    if labels and not _TAKEN.isdisjoint(labels):
        raise UsageError(
            f"the labels {', '.join(sorted(_TAKEN & labels.keys()))} have a meaning of their own",
            hint="give yours other names",
        )
    return labels
