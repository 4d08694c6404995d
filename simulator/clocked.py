"""Apps that go by the clock: early panes at its ticks, and windows that begin and end by it.

What a task's clock showed when it processed a frame is in its commits, with what came in which order. Clocks jump, and
a restart elsewhere may set one back. The invariants:

- The result on time of a window of event time is all of its messages, once, whatever panes came before.
- Its early panes count up from 0, and each is the one before and more behind that: a prefix of what came, in order. So
  there is none for nothing.
- A window that nothing but the end of the sources closes has an early pane with all that came, if that was some ticks
  before: the clock went on, though it may have been set back.
- Each message is once in a window of the clock, whatever the clock does: none is too late. It is the window of what the
  clock showed; where it was set back, that or a later one, up to that of the latest it had shown in any committed
  attempt. Messages are in the order in which they came. Sessions hold messages less than the gap apart.
- A window of the clock that emits once does so once. One that keeps panes or sessions doesn't know, after a restart,
  what was over: it emits again, for new messages, if the clock was set back before its end, and only then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from headrace.api.aggregates import implode
from headrace.api.windows import every, session, tumbling
from headrace.app import App
from simulator.case import AppCase, read, ticks
from simulator.expected import Outputs, Row, Sources, columns, differ, start_of
from simulator.lateness import window_end
from simulator.lives import Life, Lives, arrivals

_SIZE_MS = 20
_GAP_MS = 15
_SOON_MS = 160
"""Longer than clocks jump, and some ticks."""


def _declare_ticking(app: App) -> None:
    """Windows of event time that emit early by the clock."""
    by_k = read(app, "views").partition_by("k", id="by-k", partitions=2)
    ticking = by_k.window(tumbling(ticks(20)), key="k", id="ticking", early=every("10ms", time="processing")).agg(
        ids=implode("id")
    )
    ticking.send_to(app.output("panes", partitions=1))


def _declare_clocked(app: App) -> None:
    """Windows of the clock: those that emit once, those that emit early, and sessions."""
    by_k = read(app, "views").partition_by("k", id="by-k", partitions=1)
    plain = by_k.window(tumbling(f"{_SIZE_MS}ms"), key="k", id="in-plain", time="processing").agg(ids=implode("id"))
    plain.send_to(app.output("plain", partitions=1))
    speaking = by_k.window(tumbling(f"{_SIZE_MS}ms"), key="k", id="in-speaking", time="processing", early=every(2)).agg(
        ids=implode("id")
    )
    speaking.send_to(app.output("speaking", partitions=1))
    near = by_k.window(session(f"{_GAP_MS}ms"), key="k", id="in-sessions", time="processing").agg(ids=implode("id"))
    near.send_to(app.output("sessions", partitions=1))


def _ticking(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    came: dict[tuple[int, int], list[int]] = defaultdict(list)
    open_: set[tuple[int, int]] = set()
    for life in lives["by-k"]:
        late: set[tuple[int, int]] = set()
        for arrival in arrivals(life):
            for row in arrival.rows:
                window = row["k"], start_of(row["ts"], 20)
                came[window].append(row["id"])
                waits = late if arrival.at + _SOON_MS > life[-1].at else open_
                waits |= {window} if window_end(row["ts"]) > life[-1].watermark else set()
        open_ -= late
    panes: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in outputs["panes"]:
        panes[row["k"], row["window_start"]].append(row)
    views = [(view.k, start_of(view.ts, 20), view.id) for view in sources["views"]]
    if wrong := differ("by-k", [(*window, id_) for window, ids in came.items() for id_ in ids], views):
        return wrong
    if panes.keys() != came.keys():
        return f"output panes: windows {panes.keys() ^ came.keys()}"
    for window, found in panes.items():
        found.sort(key=lambda row: int(row["pane_index"]))
        if wrong := _panes(found, came[window], was_open=window in open_):
            return f"output panes, window {window}: {wrong} in {found} of {came[window]}"
    return None


def _panes(panes: Sequence[Row], ids: list[int], *, was_open: bool) -> str | None:
    if [pane["pane_index"] for pane in panes] != list(range(len(panes))):
        return "indexes that aren't 0, 1, 2"
    if [pane["pane"] for pane in panes] != ["early"] * (len(panes) - 1) + ["on_time"]:
        return "panes out of order"
    if panes[-1]["ids"] != ids:
        return "not all, or in another order,"
    sizes = [len(pane["ids"]) for pane in panes[:-1]]
    if sizes != sorted(set(sizes)) or any(pane["ids"] != ids[: len(pane["ids"])] for pane in panes):
        return "an early pane that is no longer prefix"
    if was_open and (not sizes or sizes[-1] < len(ids)):
        return "no early pane with all"
    return None


def _clocked(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    told = {id_: clock for life in lives["by-k"] for id_, clock in _clocks(life).items()}
    if wrong := differ("by-k", [(id_,) for id_ in told], [(view.id,) for view in sources["views"]]):
        return wrong
    order = {id_: place for place, id_ in enumerate(told)}
    on_time = [row for row in outputs["speaking"] if row["pane"] == "on_time"]
    for name, rows in (("plain", outputs["plain"]), ("speaking", on_time), ("sessions", outputs["sessions"])):
        if wrong := differ(name, [(id_,) for row in rows for id_ in row["ids"]], [(id_,) for id_ in told]):
            return wrong
        for row in rows:
            if name != "sessions" and (places := [order[id_] for id_ in row["ids"]]) != sorted(places):
                return f"output {name}: {row} in another order"
            if wrong := _bounds(row, [told[id_] for id_ in row["ids"]], gap=name == "sessions"):
                return f"output {name}: {wrong}"
    windows = columns(outputs["plain"], "k", "window_start")
    return differ("plain", windows, set(windows)) or _again(on_time, told)


def _clocks(life: Life) -> dict[int, tuple[int, int]]:
    """Of each message what the clock showed, and the latest that it had shown by then."""
    clocks: dict[int, tuple[int, int]] = {}
    before = -(2**63)
    for version in life:
        for arrival in version.arrivals:
            latest = max(before, arrival.latest)
            clocks |= {row["id"]: (arrival.clock, latest) for row in arrival.rows}
        before = max(before, version.latest)
    return clocks


def _bounds(row: Row, told: Sequence[tuple[int, int]], *, gap: bool) -> str | None:
    """The messages of a window were processed at times in it, or later ones as far as the clock had come."""
    start, end = row["window_start"], row["window_end"]
    if not gap:
        early = [clock for clock, latest in told if not clock < end <= latest // _SIZE_MS * _SIZE_MS + _SIZE_MS]
        return f"{row} holds what came at {early}" if early or end - start != _SIZE_MS else None
    if all(clock == latest for clock, latest in told):
        times = sorted(clock for clock, _ in told)
        near = all(after - before < _GAP_MS for before, after in pairwise(times))
        return None if near and (start, end) == (times[0], times[-1] + _GAP_MS) else f"{row} of {times}"
    lowest, highest = min(clock for clock, _ in told), max(latest for _, latest in told)
    return None if lowest <= start and end <= highest + _GAP_MS else f"{row} of {told}"


def _again(rows: Sequence[Row], told: Mapping[int, tuple[int, int]]) -> str | None:
    """Windows emit again only for messages that arrived after the clock had shown a time after their end."""
    spoken: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        spoken[row["k"], row["window_start"]].append(row)
    order = list(told)
    for found in spoken.values():
        found.sort(key=lambda row: order.index(row["ids"][0]))
        for row in found[1:]:
            if row["window_end"] > min(told[id_][1] for id_ in row["ids"]):
                return f"output speaking: {row} again, of {[told[id_] for id_ in row['ids']]}"
    return None


CASES = (
    AppCase("app-ticking", {"views": 2}, _declare_ticking, wrong_by_lives=_ticking, quiet_ms=220),
    AppCase("app-clocked", {"views": 2}, _declare_clocked, wrong_by_lives=_clocked),
)
