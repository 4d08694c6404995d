"""An app whose source partitions may be silent: windows don't wait for them, and come nevertheless.

Half of the partitions that a window depends on lie behind a shuffle, the others are its own. Sources say nothing
for long at times, and in the end for longer than any timeout, before they end. The invariants:

- Each message is in its window or among what is late, once; and late only where the committed watermarks say so, as in
  ``lateness``. What comes after a silence may be late; nothing else is, since inputs allow for the disorder there is.
- Before the sources end, when all have been silent, event time has come as far in each task as the foremost of its
  partitions has seen it: every window that was over by then has spoken.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.api.aggregates import implode
from headrace.api.windows import tumbling
from headrace.app import App
from simulator.case import DISORDER, AppCase, read, ticks
from simulator.expected import TICK_MS, Message, Outputs, Sources
from simulator.lateness import comings, in_windows, judge_lateness, window_end
from simulator.lives import Lives, arrivals

_SILENT = "15ms"


def _declare(app: App) -> None:
    views = read(app, "views", idle=_SILENT).partition_by("k", id="by-k", partitions=2)
    both = views.merge(read(app, "orders", idle=_SILENT, key=("k",)))
    windows = both.window(tumbling(ticks(20)), key="k", id="by-task", late_to=app.output("late")).agg(ids=implode("id"))
    windows.send_to(app.output("windows"))


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


CASES = (AppCase("app-silent", {"views": 2, "orders": 2}, _declare, wrong_by_lives=_wrong, due=_due, quiet_ms=450),)
