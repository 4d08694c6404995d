"""Counters and histograms of tasks, summed over the processes that have run them. Pure.

A process sends totals since its start. The coordinator adds the totals of former processes, so no counter decreases
while the driver lives, and a lost or repeated heartbeat changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.runners.coordination.messages import Series

_Key = tuple[str, tuple[tuple[str, str], ...]]


def summed(before: Iterable[Series], now: Iterable[Series]) -> list[Series]:
    """The totals of former processes and of the present one. Gauges are those of the present one."""
    found: dict[_Key, Series] = {_key(one): one for one in before if one.kind != "gauge"}
    for one in now:
        key = _key(one)
        found[key] = _sum(found[key], one) if key in found else one
    return list(found.values())


def _key(one: Series) -> _Key:
    return one.name, tuple(sorted(one.labels.items()))


def _sum(before: Series, now: Series) -> Series:
    buckets = now.buckets
    if len(before.buckets) == len(buckets):
        buckets = [one + other for one, other in zip(before.buckets, buckets, strict=True)]
    return msgspec.structs.replace(now, value=before.value + now.value, buckets=buckets)
