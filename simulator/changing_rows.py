"""Apps whose rows change: running aggregates, first and last rows, and joins of all rows.

Their outputs tell changes. What these add up to follows from the messages alone, since the messages of a key come in
one order: from one partition. How many changes tell it doesn't, as each batch is netted (``sums``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import polars as pl

from headrace.api import aggregates
from headrace.api.aggregates import n_unique
from headrace.api.stream import Stream
from headrace.app import App
from simulator.case import AppCase, Version, read
from simulator.expected import Message, Outputs, Sources, columns, differ


def _declare_totals(app: App) -> None:
    by_k = read(app, "views").partition_by("k", id="by-k", partitions=2)
    sort = (pl.col("id") % 4).alias("sort")
    totals = (
        by_k.with_columns(sort)
        .group_by(id="now")
        .agg(n=pl.len(), ids=pl.col("id").sum(), most=pl.col("sort").max(), sorts=n_unique("sort"))
    )
    totals.send_to(app.output("totals", partitions=1))
    slowly = by_k.group_by(id="slow", every="40ms").agg(n=pl.len(), ids=pl.col("id").sum())
    slowly.send_to(app.output("slowly", partitions=1))


def _by(key: str, messages: Iterable[Message]) -> dict[int, list[int]]:
    ids: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        ids[message.k if key == "k" else message.id % 3].append(message.id)
    return ids


def _totals(sources: Sources, outputs: Outputs) -> str | None:
    keys = _by("k", sources["views"])
    sorts = {k: {id_ % 4 for id_ in ids} for k, ids in keys.items()}
    wanted = [(k, len(ids), sum(ids), max(sorts[k]), len(sorts[k])) for k, ids in keys.items()]
    slowly = [(k, len(ids), sum(ids)) for k, ids in keys.items()]
    return differ("totals", columns(outputs["totals"], "k", "n", "ids", "most", "sorts"), wanted) or differ(
        "slowly", columns(outputs["slowly"], "k", "n", "ids"), slowly
    )


def _declare_told(app: App, every: str | None) -> None:
    """What was told at most once in a time is told at once, and the other way round."""
    by_k = read(app, "views").partition_by("k", id="by-k", partitions=2)
    totals = by_k.group_by(id="per-k", every=every).agg(n=pl.len(), ids=pl.col("id").sum())
    totals.send_to(app.output("totals", partitions=1))


def _told(sources: Sources, outputs: Outputs) -> str | None:
    totals = [(k, len(ids), sum(ids)) for k, ids in _by("k", sources["views"]).items()]
    return differ("totals", columns(outputs["totals"], "k", "n", "ids"), totals)


_GONE = pl.col("id") % 5 == 0


def _changes(flow: Stream) -> Stream:
    """Of each key and half the last message, unless that one deletes it."""
    return flow.with_columns(half=pl.col("id") % 2, gone=_GONE).changes(["k", "half"], deleted="gone", id="last")


def _alive(messages: Sequence[Message]) -> list[Message]:
    last = {(message.k, message.id % 2): message for message in messages}
    return [message for message in last.values() if message.id % 5]


def _declare_changed(app: App) -> None:
    """Rows that change are counted by a column that changes, so a row that goes and its next are in different tasks."""
    last = _changes(read(app, "views", key=("k",)))
    by_third = last.with_columns(third=pl.col("id") % 3, sort=pl.col("id") % 4).partition_by("third", partitions=2)
    sort = pl.col("sort")
    totals = by_third.group_by(id="per-third").agg(
        n=pl.len(), ids=pl.col("id").sum(), least=sort.min(), most=sort.max(), sorts=n_unique("sort")
    )
    totals.send_to(app.output("totals", partitions=1))


def _changed(sources: Sources, outputs: Outputs) -> str | None:
    thirds = _by("third", _alive(sources["views"]))
    sorts = {third: [id_ % 4 for id_ in ids] for third, ids in thirds.items()}
    wanted = [
        (third, len(ids), sum(ids), min(sorts[third]), max(sorts[third]), len(set(sorts[third])))
        for third, ids in thirds.items()
    ]
    return differ("totals", columns(outputs["totals"], "third", "n", "ids", "least", "most", "sorts"), wanted)


def _declare_pairs(app: App) -> None:
    """Of the left side, several rows are equal; each order may have none, or some of the same."""
    last = _changes(read(app, "views").partition_by("k", id="views-by-k", partitions=2))
    left = last.select("k", sort=pl.col("id") % 4 // 2)
    orders = read(app, "orders").partition_by("k", id="orders-by-k", partitions=2)
    right = orders.select("k", order="id")
    where = (pl.col("sort") + pl.col("order")) % 3 != 0
    pairs = left.join(right, on="k", how="full", ttl="never", where=where, id="meet")
    pairs.send_to(app.output("pairs", partitions=1))
    right.join(left, on="k", how="anti", ttl="never", id="unmet").send_to(app.output("lone", partitions=1))


def _pairs(sources: Sources, outputs: Outputs) -> str | None:
    left = [(view.k, view.id % 4 // 2) for view in _alive(sources["views"])]
    right = [(order.k, order.id) for order in sources["orders"]]
    met = [((k, sort), (k, id_)) for k, sort in left for j, id_ in right if j == k and (sort + id_) % 3]
    wanted: list[tuple[int | None, ...]] = [(k, sort, id_) for (k, sort), (_, id_) in met]
    wanted += [(k, sort, None) for k, sort in left if (k, sort) not in {one for one, _ in met}]
    wanted += [(k, None, id_) for k, id_ in right if (k, id_) not in {one for _, one in met}]
    if wrong := differ("pairs", columns(outputs["pairs"], "k", "sort", "order"), wanted):
        return wrong
    lone = [(k, id_) for k, id_ in right if k not in {j for j, _ in left}]
    return differ("lone", columns(outputs["lone"], "k", "order"), lone)


def _declare_brief(app: App) -> None:
    """Pairs of rows that are forgotten: what is said of them stays as it is then. A row may go and come again."""
    last = _changes(read(app, "views", key=("k",))).select("k", "half", sort=pl.col("id") % 4 // 2)
    left = last.partition_by("half", id="views-by-half", partitions=2)
    orders = read(app, "orders").select(half=pl.col("id") % 2, order="id")
    right = orders.partition_by("half", id="orders-by-half", partitions=2)
    left.join(right, on="half", how="left", ttl="25ms", id="meet").send_to(app.output("pairs", partitions=1))


def _brief(sources: Sources, outputs: Outputs) -> str | None:
    views = {(view.k, view.id % 2, view.id % 4 // 2) for view in sources["views"] if view.id % 5}
    orders = {order.id for order in sources["orders"]} | {None}
    odd = [
        row
        for row in columns(outputs["pairs"], "k", "half", "sort", "order")
        if row[:3] not in views or row[3] not in orders or (row[3] or row[1]) % 2 != row[1]
    ]
    return f"output pairs has {odd}" if odd else None


def _declare_first(app: App) -> None:
    """The keys with the most messages, while these numbers grow; some numbers don't count."""
    by_k = read(app, "views").partition_by("k", id="by-k", partitions=2)
    counts = by_k.group_by(id="per-k").agg(n=pl.len(), ids=pl.col("id").sum())
    by_half = counts.filter(pl.col("n") % 4 != 3).with_columns(half=pl.col("k") % 2).partition_by("half", partitions=2)
    by_half.top(2, "n", rank="place", id="top").send_to(app.output("first", partitions=1))


def _first(sources: Sources, outputs: Outputs, *, filtered: bool = True) -> str | None:
    wanted = []
    for half in (0, 1):
        keys = _by("k", sources["views"]).items()
        ids = [(k, ids) for k, ids in keys if k % 2 == half and not (filtered and len(ids) % 4 == 3)]
        first = sorted(ids, key=lambda each: (-len(each[1]), each[0]))[:2]
        wanted += [(half, place, k, len(ids), sum(ids)) for place, (k, ids) in enumerate(first, 1)]
    return differ("first", columns(outputs["first"], "half", "place", "k", "n", "ids"), wanted)


def _declare_grown(app: App, *, more: bool) -> None:
    """A running aggregate gets further results. The rows that were told without are behind the shuffle."""
    by_k = read(app, "views").partition_by("k", id="by-k", partitions=2)
    further = {"sorts": n_unique(pl.col("id") % 4), "odd": aggregates.sum(pl.col("id") % 2)} if more else {}
    counts = by_k.group_by(id="per-k").agg(n=pl.len(), ids=pl.col("id").sum(), **further)
    by_half = counts.with_columns(half=pl.col("k") % 2).partition_by("half", id="by-half", partitions=2)
    by_half.top(2, "n", rank="place", id="top").send_to(app.output("first", partitions=1))


def _declare_kept(app: App) -> None:
    """Of the rows of a third, the one that came last is in a table as long as it is alive; else the one before."""
    table = app.table("kept", key="k", schema={"k": pl.Int64, "id": pl.Int64})
    last = _changes(read(app, "changes", key=("k",))).select("id", k=pl.col("id") % 3)
    last.partition_by("k", id="by-third", partitions=2).send_to(table)
    orders = read(app, "orders").partition_by("k", id="orders-by-k", partitions=2)
    orders.join(table, how="left", suffix="_kept").send_to(app.output("found", partitions=1))


def _kept(sources: Sources) -> Mapping[str, dict[int, set[int]]]:
    return {"kept": {third: set(ids) for third, ids in _by("third", _alive(sources["changes"])).items()}}


def _found(sources: Sources, outputs: Outputs) -> str | None:
    orders = [(order.id, order.k) for order in sources["orders"]]
    if wrong := differ("found", columns(outputs["found"], "id", "k"), orders):
        return wrong
    known = {message.id for message in sources["changes"] if message.id % 5}
    found = Counter(columns(outputs["found"], "k", "id_kept"))
    odd = [(k, id_) for k, id_ in found if id_ is not None and (id_ not in known or id_ % 3 != k)]
    return f"orders found {odd}" if odd else None


CASES = (
    AppCase(
        "app-totals",
        {"views": 2},
        _declare_totals,
        _totals,
        lasting=("now", "now.values", "slow"),
        keys={"totals": ("k",), "slowly": ("k",)},
        orders=0.6,
    ),
    AppCase(
        "app-told-sooner",
        {"views": 2},
        partial(_declare_told, every="30ms"),
        _told,
        before=(Version(partial(_declare_told, every="60ms")), Version(partial(_declare_told, every=None))),
        lasting=("per-k",),
        keys={"totals": ("k",)},
    ),
    AppCase(
        "app-changed-totals",
        {"views": 2},
        _declare_changed,
        _changed,
        lasting=("last", "per-third", "per-third.values", "per-third.rows"),
        keys={"totals": ("third",)},
        orders=0.6,
    ),
    AppCase(
        "app-changed-pairs",
        {"views": 1, "orders": 2},
        _declare_pairs,
        _pairs,
        lasting=("last", "meet.left", "meet.right", "unmet.left", "unmet.right"),
        orders=0.6,
    ),
    AppCase(
        "app-brief-pairs",
        {"views": 2, "orders": 1},
        _declare_brief,
        _brief,
        lasting=("last", "meet.left", "meet.right"),
        orders=1,
    ),
    AppCase(
        "app-first",
        {"views": 2},
        _declare_first,
        _first,
        lasting=("per-k", "top", "top.rest"),
        keys={"by-half": ("k",), "first": ("half", "place")},
        orders=0.6,
    ),
    AppCase(
        "app-grown-first",
        {"views": 2},
        partial(_declare_grown, more=True),
        partial(_first, filtered=False),
        before=(Version(partial(_declare_grown, more=False)),),
        lasting=("per-k", "per-k.values", "top", "top.rest"),
        keys={"by-half": ("k",), "first": ("half", "place")},
    ),
    AppCase(
        "app-kept",
        {"changes": 2, "orders": 1},
        _declare_kept,
        _found,
        _kept,
        lasting=("last", "changes-of-kept", "changes-of-kept.rest"),
        orders=0.6,
    ),
)
