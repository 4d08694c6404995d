"""Apps of state that expires: by the clock a table, a join of last messages, a store of a low-level task; by event time
what ``deduplicate`` remembers.

What is known of a key is the last message of it on one side, for so long. Each task's order of arrival is known from
its commits, and what its clock showed at each frame; so what each message finds follows, but for one thing: a clock
that was set back sees a row alive again, unless somebody has deleted it in between. The invariants:

- What was put less than the time to live before the latest that any committed attempt's clock had shown is found.
- What was put, by the latest that the clock had shown then, longer ago than the time to live, isn't found.
- When the sources have been silent for longer than the time to live and what a walk through the store may take,
  nothing is left in state.
- ``deduplicate`` lets a message through exactly if none of its key that it let through before is near it, however long
  ago that one came: what it forgets, no timely message is near any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.api.tasks import Out, Store, Task
from headrace.app import App
from simulator.case import AppCase, read, ticks
from simulator.expected import TICK_MS, Outputs, Sources, columns, differ
from simulator.lives import Life, Lives, arrivals

_TTL_MS = 40
_WITHIN = 25
"""In ticks."""
_TTL = f"{_TTL_MS}ms"


class _Remembering(Task):
    """Says of each view which order of its key was the last."""

    last = Store(key={"k": pl.Int64}, value={"order": pl.Int64}, ttl=_TTL)

    @override
    def process(self, message: dict[str, int], out: Out) -> None:
        """Keep an order, look up a view."""
        if out.input == "orders":
            self.last.put(message["k"], {"order": message["id"]})
            return
        known = self.last.get(message["k"])
        out.send("found", {"id": message["id"], "found": None if known is None else known["order"]})


def _declare(app: App) -> None:
    views = read(app, "views").partition_by("k", id="views-by-k", partitions=1)
    orders = read(app, "orders").partition_by("k", id="orders-by-k", partitions=1)
    table = app.table("last-orders", key="k", schema={"k": pl.Int64, "order": pl.Int64}, ttl=_TTL)
    orders.select("k", order="id").send_to(table)
    views.join(table, how="left").select("id", found="order").send_to(app.output("in-table", partitions=1))
    pairs = views.join_latest(orders, "k", how="full", ttl=_TTL, id="pairs")
    pairs.select("id", "id_right").send_to(app.output("paired", partitions=1))
    told = app.task(
        _Remembering(),
        {"views": views, "orders": orders},
        {"found": {"id": pl.Int64, "found": pl.Int64}},
        id="remembering",
    )
    told["found"].send_to(app.output("remembered", partitions=1))


def _declare_apart(app: App) -> None:
    """A key comes again and again, mostly too soon."""
    by_k = read(app, "views").partition_by("k", id="by-k", partitions=2)
    by_k.deduplicate("k", within=ticks(_WITHIN), id="once").select("id").send_to(app.output("apart", partitions=1))


@dataclass(frozen=True)
class _Kept:
    """Put when the clock showed ``low``, or what it had shown before it was set back: ``high`` at most."""

    id: int
    low: int
    high: int


@dataclass(frozen=True)
class _Looking:
    """A message that looks for the last one of its key on the other side: ``may`` find one, ``must`` if so."""

    stream: str
    id: int
    last: int | None
    may: bool
    must: bool


def _looking(life: Life) -> Iterator[_Looking]:
    known: dict[str, dict[int, _Kept]] = {"views-by-k": {}, "orders-by-k": {}}
    before = 0
    for version in life:
        for arrival in version.arrivals:
            here, there = known[arrival.stream], known[_OTHER[arrival.stream]]
            latest = max(before, arrival.latest)
            for row in arrival.rows:
                kept = there.get(row["k"])
                may = kept is not None and kept.high > max(0, arrival.clock) - _TTL_MS
                must = kept is not None and kept.low > latest - _TTL_MS
                yield _Looking(arrival.stream, row["id"], None if kept is None else kept.id, may, must)
            low, high = max(0, arrival.clock), max(0, arrival.latest)
            here |= {row["k"]: _Kept(row["id"], low, high) for row in arrival.rows}
        before = max(before, version.latest)


_OTHER = {"views-by-k": "orders-by-k", "orders-by-k": "views-by-k"}


def _wrong(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    looked = [looking for life in lives["orders-by-k"] for looking in _looking(life)]
    views = [looking for looking in looked if looking.stream == "views-by-k"]
    for name in ("in-table", "remembered"):
        found = columns(outputs[name], "id", "found")
        if wrong := differ(name, [(id_,) for id_, _ in found], [(view.id,) for view in sources["views"]]):
            return wrong
        if wrong := _judged(name, views, dict(found).__getitem__):
            return wrong
    return _paired(outputs, looked)


def _judged(name: str, looked: Sequence[_Looking], found: Callable[[int], int | None]) -> str | None:
    for looking in looked:
        id_ = found(looking.id)
        if id_ not in (looking.last if looking.may else None, None if not looking.must else looking.last):
            return f"output {name}: {looking} found {id_}"
    return None


def _paired(outputs: Outputs, looked: Sequence[_Looking]) -> str | None:
    """Each message meets what it has found, once, or leaves alone."""
    pairs: list[tuple[Any, ...]] = columns(outputs["paired"], "id", "id_right")
    for looking in looked:
        left = looking.stream == "views-by-k"
        alone = (looking.id, None) if left else (None, looking.id)
        met = (looking.id, looking.last) if left else (looking.last, looking.id)
        wanted = [met] if looking.must else [met, alone] if looking.may else [alone]
        found = [pair for pair in wanted if pair in pairs]
        if len(found) != 1:
            return f"output paired: {looking} has {found}, not one of {wanted}"
        pairs.remove(found[0])
    return f"output paired: {pairs} should not be there" if pairs else None


def _apart(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    chosen: dict[int, list[int]] = defaultdict(list)
    wanted, came = [], []
    for row in (row for life in lives["by-k"] for arrival in arrivals(life) for row in arrival.rows):
        came.append((row["id"],))
        if all(abs(row["ts"] - ts) >= _WITHIN * TICK_MS for ts in chosen[row["k"]]):
            chosen[row["k"]].append(row["ts"])
            wanted.append((row["id"],))
    all_ = [(view.id,) for view in sources["views"]]
    return differ("by-k", came, all_) or differ("apart", columns(outputs["apart"], "id"), wanted)


def _nothing_left(sources: Sources) -> Mapping[str, dict[int, set[int]]]:
    return {"last-orders": {}}


CASES = (
    AppCase(
        "app-expiring",
        {"views": 1, "orders": 1},
        _declare,
        tables=_nothing_left,
        table_column="order",
        wrong_by_lives=_wrong,
        quiet_ms=650,
        forgets=("pairs.left", "pairs.right", "remembering.last"),
    ),
    AppCase("app-apart", {"views": 2}, _declare_apart, wrong_by_lives=_apart),
)
