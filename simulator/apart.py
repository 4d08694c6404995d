"""An app whose inputs are apart in time: some end early, one is silent to the end, one has no event time.

One stage reads views and orders, and writes two shuffles: one of views alone, one of both. Another keeps a table of
what comes without event time, and looks up views. Views end long before the others. The invariants:

- Windows hold each message once. A low-level task says its last words once, whatever restarts it lives through.
- Before the others end, everything that depends on views alone has been said: windows of the source stage, windows
  behind the shuffle and the table, and the last words. Windows of both are as far as the orders are.
- An end is committed once for each partition of each shuffle, and nothing is written behind it (``Oracle``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import polars as pl
from typing_extensions import override

from headrace.api.aggregates import implode
from headrace.api.remote import retry
from headrace.api.stream import Stream
from headrace.api.tasks import Out, Task, TaskContext
from headrace.api.windows import tumbling
from headrace.app import App
from simulator.calls import answer
from simulator.case import COLUMNS, DISORDER, AppCase, read, ticks
from simulator.expected import TICK_MS, Message, Outputs, Row, Sources, differ, start_of
from simulator.lateness import window_end
from simulator.lives import Lives

_PATIENT = retry(None, "2ms", longest="20ms")


class _LastWords(Task):
    """Says something when there are no more messages."""

    @override
    def init(self, context: TaskContext) -> None:
        """Learn which task it is."""
        self.partition = context.partition

    @override
    def process(self, message: dict[str, int], out: Out) -> None:
        """Pass nothing on."""

    @override
    def on_end_of_stream(self, out: Out) -> None:
        """There are no more."""
        out.send("words", {"k": self.partition})


async def _asked(row: dict[str, int]) -> dict[str, int]:
    await answer()
    return row


def _declare(app: App, *, asks: bool) -> None:
    views, orders = read(app, "views", key=("k",)), read(app, "orders")
    _windows(app, views, "direct")
    app.task(_LastWords(), {"views": views}, {"words": {"k": pl.Int64}}, id="last")["words"].send_to(
        app.output("words", partitions=1)
    )
    names = app.table("names", key="k", schema={"k": pl.Int64, "name": pl.Int64})
    changes = app.input("changes", COLUMNS).partition_by("k", id="changes-by-k", partitions=2)
    changes.select("k", name="id").send_to(names)
    if asks:
        views = views.map_async(_asked, COLUMNS, concurrency=2, timeout="50ms", retry=_PATIENT, id="asked")
    alone = views.partition_by("k", id="alone", partitions=2)
    _windows(app, alone.join(names, how="left").select(*COLUMNS), "beside")
    _windows(app, views.merge(orders).partition_by("k", id="both", partitions=2), "both-out")


def _windows(app: App, flow: Stream, name: str) -> None:
    windows = flow.window(tumbling(ticks(20)), key="k", id=f"in-{name}").agg(ids=implode("id"))
    windows.send_to(app.output(name, partitions=1))


def _found(rows: Iterable[Row]) -> list[tuple[int, int, int]]:
    return [(row["k"], row["window_start"], id_) for row in rows for id_ in row["ids"]]


def _wanted(messages: Iterable[Message]) -> list[tuple[int, int, int]]:
    return [(message.k, start_of(message.ts, 20), message.id) for message in messages]


def _of_views(sources: Sources, outputs: Outputs) -> str | None:
    views = _wanted(sources["views"])
    words = [(row["k"],) for row in outputs["words"]]
    return (
        differ("words", words, [(0,), (1,)])
        or differ("direct", _found(outputs["direct"]), views)
        or differ("beside", _found(outputs["beside"]), views)
    )


def _wrong(sources: Sources, outputs: Outputs) -> str | None:
    both = _wanted([*sources["views"], *sources["orders"]])
    return _of_views(sources, outputs) or differ("both-out", _found(outputs["both-out"]), both)


def _due(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    if wrong := _of_views(sources, outputs):
        return wrong
    reached = max(order.ts for order in sources["orders"]) - DISORDER * TICK_MS
    over = [m for m in (*sources["views"], *sources["orders"]) if window_end(m.ts) <= reached]
    return differ("both-out", _found(row for row in outputs["both-out"] if row["window_end"] <= reached), _wanted(over))


_INPUTS = {"views": 2, "orders": 1, "changes": 1}

_APART = AppCase(
    "app-apart", _INPUTS, partial(_declare, asks=False), _wrong, due=_due, quiet_ms=450, ends_early=("views",)
)

CASES = (
    _APART,
    # Calls take their time, and some get no answer before they are made again.
    replace(_APART, name="app-apart-async", declare=partial(_declare, asks=True), quiet_ms=1000),
)
