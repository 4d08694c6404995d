"""Apps whose source partitions may be silent: windows don't wait for them, and come nevertheless.

Sources say nothing for long at times, and in the end for longer than any timeout, before they end. In the first app,
half of the partitions that a window depends on lie behind a shuffle, the others are its own. The invariants:

- Each message is in its window or among what is late, once; and late only where the committed watermarks say so, as in
  ``lateness``. What comes after a silence may be late; nothing else is, since inputs allow for the disorder there is.
- Before the sources end, when all have been silent, event time has come as far in each task as the foremost of its
  partitions has seen it: every window that was over by then has spoken.

In the others, windows lie behind windows, with a shuffle between them. The first windows are in stages whose tasks all
hear the same (in one app, the messages of a source come by two ways that differ in length), or directly on the source
partitions. What comes late to the first windows is left out. The invariants:

- Nothing that windows have emitted is late for the windows behind them, however long sources were silent, and in
  whatever order tasks learn that one has woken. Directly on a partition there is always an open window, from its first
  frame on. So only what event time had passed by then may be late.
- Before the sources end, when all have been silent, the last windows have spoken that are over by the time to which the
  first have come: the foremost of the partitions, or the hindmost if each has open windows of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import polars as pl

from headrace.api.aggregates import implode
from headrace.api.stream import Stream
from headrace.api.windows import tumbling
from headrace.app import App
from simulator.case import DISORDER, AppCase, read, ticks
from simulator.expected import TICK_MS, Message, Outputs, Sources, differ, start_of
from simulator.lateness import comings, in_windows, judge_lateness, window_end
from simulator.lives import Lives, arrivals

_SILENT = "15ms"
_QUIET_MS = 450


def _declare(app: App) -> None:
    views = read(app, "views", idle=_SILENT).partition_by("k", id="by-k", partitions=2)
    both = views.merge(read(app, "orders", idle=_SILENT, key=("k",)))
    windows = both.window(tumbling(ticks(20)), key="k", id="by-task", late_to=app.output("late")).agg(ids=implode("id"))
    windows.send_to(app.output("windows"))


def _declare_again(app: App, *, two_ways: bool) -> None:
    """Windows of 20 ticks a key, and of these windows of 40 ticks a group."""
    views = read(app, "views", idle=_SILENT)
    firsts = _firsts(app, views.partition_by("k", id="by-k", partitions=2), "first")
    if two_ways:
        longer = views.partition_by("id", id="by-id", partitions=2).filter(pl.col("id") % 2 == 0)
        firsts = firsts.merge(_firsts(app, longer.partition_by("k", id="again-by-k", partitions=3), "other"))
    _last(app, firsts)


def _declare_directly(app: App) -> None:
    _last(app, _firsts(app, read(app, "views", idle=_SILENT, key=("k",)), "first"))


def _last(app: App, firsts: Stream) -> None:
    groups = firsts.partition_by("g", id="by-g", partitions=2)
    last = groups.window(tumbling(ticks(40)), key="g", id="last", late_to=app.output("late")).agg(all=implode("ids"))
    last.send_to(app.output("windows"))


def _firsts(app: App, flow: Stream, id_: str) -> Stream:
    late = app.output(f"{id_}-late")
    windows = flow.window(tumbling(ticks(20)), key="k", id=id_, late_to=late).agg(ids=implode("id"))
    return windows.with_columns(g=pl.col("k") % 2).select("g", "ids", "window_end")


def _wrong(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    came, late = list(comings(lives, "by-k")), outputs["late"]
    if wrong := judge_lateness("late", late, came, window_end):
        return wrong
    task_of = {row["id"]: n for n, life in enumerate(lives["by-k"]) for a in arrivals(life) for row in a.rows}
    for task in range(len(lives["by-k"])):
        messages = [m for name in ("views", "orders") for m in sources[name] if task_of[m.id] == task]
        rows = [row for row in outputs["windows"] if task_of[row["ids"][0]] == task]
        if wrong := in_windows("windows", rows, [row for row in late if task_of[row["id"]] == task], messages):
            return wrong
    return None


def _foremost(messages: Iterable[Message]) -> int:
    return max(message.ts for message in messages) - DISORDER * TICK_MS


def _due(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    said = {id_ for row in outputs["windows"] for id_ in row["ids"]} | {row["id"] for row in outputs["late"]}
    for task, life in enumerate(lives["by-k"]):
        own = [order for order in sources["orders"] if order.partition == task]
        time = max(_foremost(sources["views"]), _foremost(own))
        came = [row for arrival in arrivals(life) for row in arrival.rows]
        waiting = [row for row in came if window_end(row["ts"]) <= time and row["id"] not in said]
        if waiting:
            return f"task {task} of by-k, whose sources are silent at {time}, keeps back {waiting}"
    return None


def _wrong_again(sources: Sources, outputs: Outputs, *, ways: tuple[str, ...]) -> str | None:
    late = [id_ for row in outputs["late"] for id_ in row["ids"]]
    if late:
        return f"late are what windows have emitted in time: {late}"
    wanted: list[_Found] = []
    for way in ways:
        left_out = {row["id"] for row in outputs[f"{way}-late"]}
        views = [view for view in sources["views"] if way == "first" or view.id % 2 == 0]
        wanted += _wanted(view for view in views if view.id not in left_out)
    return differ("windows", _found(outputs), wanted)


def _wrong_directly(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    partition_of = {view.id: view.partition for view in sources["views"]}
    late = {id_ for row in outputs["late"] for id_ in row["ids"]}
    for life in lives["by-g"]:
        reached: dict[int, int] = {}
        for version in life:
            for row in (row for arrival in version.arrivals for row in arrival.rows):
                ahead = reached.setdefault(partition_of[row["ids"][0]], version.watermark)
                if not late.isdisjoint(row["ids"]) and row["window_end"] > ahead:
                    return f"late is {row}, though when its partition began to send, {ahead} was reached"
    if outputs["first-late"]:
        return f"late for the first windows are {outputs['first-late']}"
    return differ("windows", _found(outputs), _wanted(view for view in sources["views"] if view.id not in late))


_Found = tuple[int, int, int]


def _found(outputs: Outputs) -> list[_Found]:
    return [(row["g"], row["window_start"], id_) for row in outputs["windows"] for ids in row["all"] for id_ in ids]


def _wanted(views: Iterable[Message]) -> list[_Found]:
    return [(view.k % 2, start_of(window_end(view.ts) - 1, 40), view.id) for view in views]


def _due_again(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    return _kept_back(_foremost(sources["views"]), sources, outputs)


def _due_directly(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    partitions = {view.partition for view in sources["views"]}
    hindmost = min(_foremost(v for v in sources["views"] if v.partition == p) for p in partitions)
    return _kept_back(hindmost, sources, outputs)


def _kept_back(time: int, sources: Sources, outputs: Outputs) -> str | None:
    late = {row["id"] for row in outputs["first-late"]} | {id_ for row in outputs["late"] for id_ in row["ids"]}
    due = [
        v for v in sources["views"] if start_of(window_end(v.ts) - 1, 40) + 40 * TICK_MS <= time and v.id not in late
    ]
    waiting = set(_wanted(due)) - set(_found(outputs))
    return f"the last windows, whose sources are silent at {time}, keep back {waiting}" if waiting else None


def _again(name: str, partitions: int, *ways: str) -> AppCase:
    declare, wrong = partial(_declare_again, two_ways=len(ways) > 1), partial(_wrong_again, ways=ways)
    return AppCase(name, {"views": partitions}, declare, wrong, due=_due_again, quiet_ms=_QUIET_MS, deep=True)


CASES = (
    AppCase("app-silent", {"views": 2, "orders": 2}, _declare, wrong_by_lives=_wrong, due=_due, quiet_ms=_QUIET_MS),
    _again("app-silent-again", 3, "first"),
    _again("app-silent-two-ways", 2, "first", "other"),
    # Restored, too, with other numbers of tasks: that takes oracles that don't ask when something was committed.
    replace(_again("app-silent-restored", 2, "first", "other"), due=None, deep=False),
    AppCase(
        "app-silent-direct",
        {"views": 2},
        _declare_directly,
        wrong_by_lives=_wrong_directly,
        due=_due_directly,
        quiet_ms=_QUIET_MS,
        deep=True,
    ),
)
