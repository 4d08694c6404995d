"""Apps that change while they run: drained or killed, and started as another version that takes over what fits.

The invariants of all apps hold across the change: what is committed counts once, in state and in outputs, though stages
could be renamed, positions forgotten, or old changes put into new stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import polars as pl

from headrace.api.aggregates import count, max, sum
from headrace.api.stream import Stream
from headrace.api.windows import tumbling
from headrace.app import App
from simulator.case import AppCase, Version, read, ticks
from simulator.expected import Message, Outputs, Row, Sources, columns, differ
from simulator.lives import Life, Lives, arrivals

_ALL = ticks(1_000_000)
"""A window for all messages: those of an input that comes later aren't late."""


def _grown(app: App, *, later: bool) -> None:
    """An input in front of the shuffle, whose name sorts before that of the other; an aggregate; an output."""
    flow = read(app, "views")
    if later:
        flow = flow.merge(read(app, "orders"))
        flow.select("id").send_to(app.output("seen", partitions=1))
    shuffled = flow.partition_by("k", id="by-k", partitions=2)
    more = {"most": max("id")} if later else {}
    windows = shuffled.window(tumbling(_ALL), key="k", id="per-key").agg(n=count(), ids=sum("id"), **more)
    _totals(app, windows)


def _totals(app: App, windows: Stream) -> None:
    _sent(app, windows.partition_by("k", id="again", partitions=2))


def _sent(app: App, again: Stream) -> None:
    totals = again.window(tumbling(_ALL), key="k", id="total").agg(n=sum("n"), ids=sum("ids"))
    totals.send_to(app.output("totals", partitions=1))


def _wrong_grown(sources: Sources, outputs: Outputs) -> str | None:
    messages = [*sources["views"], *sources["orders"]]
    return _differ_in_totals(messages, outputs) or _more_than_once(messages, outputs, "seen")


def _differ_in_totals(messages: Iterable[Message], outputs: Outputs) -> str | None:
    groups: dict[int, list[int]] = {}
    for message in messages:
        groups.setdefault(message.k, []).append(message.id)
    wanted = [(k, len(ids), sum_of(ids)) for k, ids in groups.items()]
    return differ("totals", columns(outputs["totals"], "k", "n", "ids"), wanted)


def sum_of(ids: Iterable[int]) -> int:
    """Their sum: ``sum`` is an aggregate here."""
    total = 0
    for id_ in ids:
        total += id_
    return total


def _more_than_once(messages: Iterable[Message], outputs: Outputs, name: str) -> str | None:
    """What an output holds that begins or starts over with the change: of each message one at most."""
    left = {message.id for message in messages}
    for (id_,) in columns(outputs[name], "id"):
        if id_ not in left:
            return f"output {name} has {id_} twice, or from nowhere"
        left.remove(id_)
    return None


def _cut(app: App, *, later: bool) -> None:
    """A step starts over with nothing, an output goes, and the step beside it keeps what it has."""
    shuffled = read(app, "views").partition_by("k", id="by-k", partitions=2)
    once = shuffled.deduplicate(["k", "id"], within=ticks(900 if later else 800), id="once")
    once.select("id").send_to(app.output("ids", partitions=1))
    if not later:
        shuffled.select("id").send_to(app.output("gone", partitions=1))
    _totals(app, shuffled.window(tumbling(_ALL), key="k", id="per-key").agg(n=count(), ids=sum("id")))


def _wrong_cut(sources: Sources, outputs: Outputs) -> str | None:
    messages = sources["views"]
    ids = [id_ for (id_,) in columns(outputs["ids"], "id")]
    missing = {message.id for message in messages} - set(ids)
    often = [id_ for id_ in set(ids) if ids.count(id_) > sum_of(message.id == id_ for message in messages)]
    if missing or often:
        return f"output ids lacks {sorted(missing)}, and has {sorted(often)} too often"
    return _differ_in_totals(messages, outputs)


def _replaced(app: App, *, later: bool) -> None:
    """Another stage writes the shuffle. The one that did ends there; what it kept and hadn't read is given up."""
    flow = read(app, "views") if later else read(app, "orders", key=("k",))
    flow = flow if later else flow.deduplicate(["k", "id"], within=ticks(800), id="once")
    _counted(app, flow)


def _counted(app: App, flow: Stream) -> None:
    """Totals of messages that are shuffled as they are."""
    shuffled = flow.partition_by("k", id="by-k", partitions=2).filter(pl.col("id") > 0)
    _totals(app, shuffled.window(tumbling(_ALL), key="k", id="per-key").agg(n=count(), ids=sum("id")))


def _wrong_without_orders(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    """Of the input that is gone what was read by then."""
    read_of = [arrival for stage in lives.values() for life in stage for arrival in arrivals(life)]
    orders = {row["id"] for arrival in read_of if arrival.stream == "orders" for row in arrival.rows}
    read_then = [message for message in sources["orders"] if message.id in orders]
    return _differ_in_totals([*sources["views"], *read_then], outputs)


def _narrowed(app: App, *, later: bool) -> None:
    """An input with more partitions than the other goes, so that some tasks of its stage have nothing to do."""
    flow = read(app, "views")
    _counted(app, flow if later else flow.merge(read(app, "orders")))


def _returned(app: App, *, has: bool) -> None:
    """An output that goes, and comes back."""
    shuffled = read(app, "views").partition_by("k", id="by-k", partitions=2)
    if has:
        shuffled.select("id").send_to(app.output("again-and-again", partitions=1))
    _totals(app, shuffled.window(tumbling(_ALL), key="k", id="per-key").agg(n=count(), ids=sum("id")))


def _wrong_returned(sources: Sources, outputs: Outputs) -> str | None:
    messages = sources["views"]
    return _differ_in_totals(messages, outputs) or _more_than_once(messages, outputs, "again-and-again")


def _in_steps(app: App) -> None:
    """Two shuffles of rows as they are, between them windows."""
    views = read(app, "views")
    views.select("id").send_to(app.output("seen", partitions=1))
    shuffled = views.partition_by("k", id="by-k", partitions=2).filter(pl.col("id") > 0)
    windows = shuffled.window(tumbling(_ALL), key="k", id="per-key").agg(n=count(), ids=sum("id"))
    _sent(app, windows.partition_by("k", id="again", partitions=2).filter(pl.col("n") > 0))


def _wrong_in_steps(sources: Sources, rows: Outputs, lives: Lives) -> str | None:
    """Whatever is repeated, all that is committed follows from what its writers have taken in."""
    views = sources["views"]
    by_k, again = _taken(lives["by-k"]), _taken(lives["again"])
    lost = {view.id for view in views} - {row["id"] for row in by_k}
    if lost:
        return f"stage by-k has never seen {sorted(lost)}"
    ids = [(view.id,) for view in views]
    return (
        differ("seen", columns(rows["seen"], "id"), ids)
        or differ("by-k", columns(rows["by-k"], "id"), ids)
        or differ("again", columns(rows["again"], "k", "n", "ids"), _sums((r["k"], 1, r["id"]) for r in by_k))
        or differ("totals", columns(rows["totals"], "k", "n", "ids"), _sums(columns(again, "k", "n", "ids")))
    )


def _taken(stage: Sequence[Life]) -> list[Row]:
    return [dict(row) for life in stage for arrival in arrivals(life) for row in arrival.rows]


def _sums(rows: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """By the first column the sums of the others."""
    sums: dict[int, tuple[int, int]] = {}
    for k, n, ids in rows:
        before = sums.get(k, (0, 0))
        sums[k] = before[0] + n, before[1] + ids
    return [(k, *both) for k, both in sums.items()]


_STRICT = AppCase(
    "app-stricter",
    {"views": 2},
    _in_steps,
    wrong_by_lives=_wrong_in_steps,
    before=(Version(_in_steps, guarantee="at_least_once"),),
    quiet_ms=300,
)

CASES = (
    _STRICT,
    replace(_STRICT, name="app-looser", before=(Version(_in_steps),), guarantee="at_least_once"),
    AppCase(
        "app-grown",
        {"views": 2, "orders": 2},
        lambda app: _grown(app, later=True),
        _wrong_grown,
        before=(Version(lambda app: _grown(app, later=False), interval_ms=50),),
        quiet_ms=300,
    ),
    AppCase(
        "app-cut",
        {"views": 2},
        lambda app: _cut(app, later=True),
        _wrong_cut,
        repeats=True,
        before=(Version(lambda app: _cut(app, later=False)),),
        drops=("once",),
        quiet_ms=300,
    ),
    AppCase(
        "app-wider",
        {"views": 3, "orders": 4},
        lambda app: _grown(app, later=True),
        _wrong_grown,
        before=(Version(lambda app: _grown(app, later=False), {"views": 2}),),
        quiet_ms=300,
    ),
    AppCase(
        "app-narrower",
        {"views": 1, "orders": 3},
        lambda app: _narrowed(app, later=True),
        wrong_by_lives=_wrong_without_orders,
        before=(Version(lambda app: _narrowed(app, later=False)),),
        drops=("orders",),
        quiet_ms=300,
    ),
    AppCase(
        "app-replaced",
        {"views": 2, "orders": 2},
        lambda app: _replaced(app, later=True),
        wrong_by_lives=_wrong_without_orders,
        before=(Version(lambda app: _replaced(app, later=False)),),
        drops=("orders", "once"),
        quiet_ms=300,
    ),
    AppCase(
        "app-returned",
        {"views": 2},
        lambda app: _returned(app, has=True),
        _wrong_returned,
        before=tuple(Version(partial(_returned, has=has)) for has in (True, False)),
        quiet_ms=300,
    ),
)
