"""Apps whose flows branch and meet again: what comes out depends on the order of messages where they meet.

That order is the one in which the tasks have processed messages, which the oracle hears again one message at a time
(``one_at_a_time``). What follows from the messages alone is worked out here.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import polars as pl
from typing_extensions import override

from headrace.api.operators.join import JoinHow
from headrace.api.stream import Stream
from headrace.api.tasks import Out, Store, Task
from headrace.api.windows import count as count_window
from headrace.app import App
from simulator.case import COLUMNS, AppCase, read, ticks
from simulator.expected import TICK_MS, Outputs, Sources, columns, differ

_ODD = pl.col("id") % 2 == 1


def _shuffled(app: App) -> Stream:
    return read(app, "views").partition_by("k", id="by-k", partitions=2)


def _declare_feed(app: App) -> None:
    """A change feed: puts and deletions of one table are two branches; a third one looks rows up."""
    table = app.table("kept", key="k", schema={"k": pl.Int64, "id": pl.Int64})
    changes = _shuffled(app)
    changes.filter(_ODD).select("k", "id").send_to(table)
    changes.filter(~_ODD).delete_from(table)
    changes.join(table, how="left", suffix="_kept", id="look-up").send_to(app.output("found", partitions=1))


def _feed(sources: Sources, outputs: Outputs) -> str | None:
    found = columns(outputs["found"], "id", "id_kept")
    if wrong := differ("found", [(id_,) for id_, _ in found], [(view.id,) for view in sources["views"]]):
        return wrong
    # A message looks its key up after its own change.
    wrong_ones = [pair for pair in found if pair[1] != (pair[0] if pair[0] % 2 else None)]
    return f"output found: {wrong_ones}" if wrong_ones else None


def _declare_sums(app: App) -> None:
    """Each message adds one to what the table has."""
    table = app.table("sums", key="k", schema={"k": pl.Int64, "n": pl.Int64})
    before = _shuffled(app).join(table, how="left", id="before")
    after = before.select("id", "k", n=pl.col("n").fill_null(0) + 1)
    after.select("k", "n").send_to(table)
    after.send_to(app.output("numbered", partitions=1))


def _declare_sums_by_function(app: App) -> None:
    """The same, in a way that goes through one message at a time."""
    table = app.table("sums", key="k", schema={"k": pl.Int64, "n": pl.Int64})
    before = _shuffled(app).join(table, how="left", id="before")
    schema = {"id": pl.Int64, "k": pl.Int64, "n": pl.Int64}
    after = before.map(lambda row: {"id": row["id"], "k": row["k"], "n": (row["n"] or 0) + 1}, schema)
    after.select("k", "n").send_to(table)
    after.send_to(app.output("numbered", partitions=1))


def _totals(sources: Sources) -> dict[str, dict[int, set[int]]]:
    return {"sums": {k: {n} for k, n in Counter(view.k for view in sources["views"]).items()}}


def _numbered(sources: Sources, outputs: Outputs) -> str | None:
    per_key = Counter(view.k for view in sources["views"])
    wanted = [(k, n) for k, most in per_key.items() for n in range(1, most + 1)]
    return differ("numbered", columns(outputs["numbered"], "k", "n"), wanted)


def _declare_split(app: App) -> None:
    """Branches that merge before a shuffle, behind it, and in an output, with count windows that see their order."""
    views = read(app, "views")
    doubled = views.filter(~_ODD).flat_map(lambda row: [row, {**row, "id": -row["id"]}], COLUMNS)
    merged = views.filter(_ODD).merge(doubled).partition_by("k", id="by-k", partitions=1)
    out = app.output("split", partitions=1)
    merged.filter(lambda row: row["k"] % 2 == 0).send_to(out)
    merged.filter(pl.col("k") % 2 == 1).send_to(out)
    low, high = merged.filter(pl.col("id") < 20), merged.filter(pl.col("id") >= 20)
    threes = low.merge(high).window(count_window(3), key="k", id="by-threes").agg(ids=pl.col("id").implode())
    threes.send_to(app.output("threes", partitions=1))


def _split(sources: Sources, outputs: Outputs) -> str | None:
    wanted = [id_ for view in sources["views"] for id_ in ((view.id,) if view.id % 2 else (view.id, -view.id))]
    found = [row["id"] for row in outputs["split"]]
    if wrong := differ("split", [(id_,) for id_ in found], [(id_,) for id_ in wanted]):
        return wrong
    apart = [id_ for id_, behind in pairwise(found) if id_ % 2 == 0 and id_ > 0 and behind != -id_]
    return f"output split: {apart} aren't followed by their doubles" if apart else None


def _declare_pairs(app: App, how: JoinHow) -> None:
    views = _shuffled(app)
    odd, even = views.filter(_ODD), views.filter(~_ODD)
    odd.join(even, on="k", how=how, within=ticks(10), id="near").send_to(app.output("pairs", partitions=1))
    odd.join_latest(even, "k", ttl="1h", how=how, id="last").send_to(app.output("latest", partitions=1))


def _pairs(sources: Sources, outputs: Outputs) -> str | None:
    views = sources["views"]
    wanted = [
        (odd.id, even.id)
        for odd in views
        for even in views
        if odd.id % 2 and not even.id % 2 and odd.k == even.k and abs(odd.ts - even.ts) <= 10 * TICK_MS
    ]
    found = [pair for pair in columns(outputs["pairs"], "id", "id_right") if None not in pair]
    return differ("pairs", found, wanted)


class _Notes(Task):
    """Numbers the messages of a key, whichever input they come from."""

    seen = Store(key={"k": pl.Int64}, value={"n": pl.Int64})

    @override
    def process(self, message: dict[str, int], out: Out) -> None:
        before = self.seen.get(message["k"])
        n = 0 if before is None else before["n"]
        self.seen.put(message["k"], {"n": n + 1})
        out.send("notes", {"id": message["id"], "n": n, "side": out.input})
        if message["id"] % 3 == 0:
            out.send("thirds", {"id": message["id"], "n": n, "side": "third"})


_NOTES: dict[str, pl.DataType] = {"id": pl.Int64(), "n": pl.Int64(), "side": pl.String()}


def _declare_notes(app: App) -> None:
    views = _shuffled(app)
    outputs = app.task(
        _Notes(),
        inputs={"all": views, "odd": views.filter(_ODD)},
        outputs={"notes": _NOTES, "thirds": _NOTES},
        id="noting",
    )
    outputs["notes"].merge(outputs["thirds"]).send_to(app.output("notes", partitions=1))


def _notes(sources: Sources, outputs: Outputs) -> str | None:
    sides = [("all", view.id) for view in sources["views"]]
    sides += [("odd", view.id) for view in sources["views"] if view.id % 2]
    sides += [("third", id_) for _, id_ in sides if id_ % 3 == 0]
    return differ("notes", columns(outputs["notes"], "side", "id"), sides)


CASES = (
    AppCase("app-feed", {"views": 2}, _declare_feed, _feed, orders=1),
    AppCase("app-sums", {"views": 2}, _declare_sums, _numbered, _totals, "n", orders=1),
    AppCase("app-sums-single", {"views": 1}, _declare_sums_by_function, _numbered, _totals, "n", orders=1),
    AppCase("app-split", {"views": 1}, _declare_split, _split, orders=1),
    AppCase("app-branches", {"views": 2}, lambda app: _declare_pairs(app, "inner"), _pairs, orders=1),
    AppCase("app-outer-branches", {"views": 1}, lambda app: _declare_pairs(app, "full"), _pairs, orders=1),
    AppCase("app-notes", {"views": 2}, _declare_notes, _notes, orders=1),
)
