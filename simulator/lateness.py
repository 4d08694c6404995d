"""Apps with late messages: what a message that comes late may do, and where it is found.

Inputs allow less disorder than there is. Which messages are late then depends on how far the watermark of a task has
come when they do, so on chance; but wherever it stood at the commit before a message, it stood at least there, and
at the next commit at least where it stood at the message. The invariants:

- Each message is found exactly once: in one window, or among what is late. (Of windows that overlap: in each that
  isn't over, and among what is late only if all of them are.)
- It is late only if its window was over (allowed lateness included) by the commit behind it; and if it was over by the
  commit before, it has to be.
- A watermark rises with what its source partition has said: a message is late only if messages of earlier frames of
  its partition are newer by more than the input allows.
- The panes of a window and key count up from 0; at most one is on time, early ones come before it and late ones
  behind. Accumulating, each is the one before and more behind that (only the one on time may add nothing), and the
  last has all; discarding, none is empty and together they have all, in order of arrival. What came before the window
  was over is not in a late pane, and what came when it was is in no other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.api.aggregates import implode
from headrace.api.windows import at_close, every, hopping, tumbling
from headrace.app import App
from simulator.case import AppCase, read, ticks
from simulator.expected import TICK_MS, Message, Outputs, Row, Sources, columns, differ, start_of
from simulator.lives import Lives

_DISORDER = 80
_LATENESS = 1
_ALLOWED = 6
_SIZE_MS = 20 * TICK_MS


def _declare_late(app: App) -> None:
    """Windows that emit once, side by side and overlapping, and a step that drops what is late."""
    by_k = read(app, "views", _LATENESS).partition_by("k", id="by-k", partitions=2)
    ids = {"ids": implode("id")}
    plain = by_k.window(tumbling(ticks(20)), key="k", id="in-plain", late_to=app.output("plain-late")).agg(**ids)
    plain.send_to(app.output("plain", partitions=1))
    hops = by_k.window(hopping(ticks(30), every=ticks(20)), key="k", id="in-hops", late_to=app.output("hops-late")).agg(
        **ids
    )
    hops.send_to(app.output("hops", partitions=1))
    by_k.drop_late(late_to=app.output("dropped")).select("id").send_to(app.output("timely"))


def _declare_late_panes(app: App) -> None:
    """Windows that emit again when a late message arrives, accumulating and discarding."""
    by_k = read(app, "views", _LATENESS).partition_by("k", id="by-k", partitions=1)
    growing = by_k.window(
        tumbling(ticks(20)),
        key="k",
        id="that-grow",
        early=every(2),
        late=every(1),
        allowed_lateness=ticks(_ALLOWED),
        late_to=app.output("growing-late"),
    ).agg(ids=implode("id"))
    growing.send_to(app.output("growing"))
    apart = by_k.window(
        tumbling(ticks(20)),
        key="k",
        id="that-differ",
        late=at_close(),
        allowed_lateness=ticks(_ALLOWED),
        panes="discarding",
        late_to=app.output("apart-late"),
    ).agg(ids=implode("id"))
    apart.send_to(app.output("apart"))


@dataclass(frozen=True)
class Coming:
    """A message came when event time in its task was from ``low`` to ``high``."""

    id: int
    k: int
    ts: int
    low: int
    high: int

    def over(self, end: int) -> bool | None:
        """Whether what ends at ``end`` was over; None: either."""
        return True if end <= self.low else False if end > self.high else None


def comings(lives: Lives, stage: str) -> Iterator[Coming]:
    """All that came to the tasks of a stage, in order for each."""
    for life in lives[stage]:
        low = -(2**63)
        for version in life:
            for arrival in version.arrivals:
                for row in arrival.rows:
                    yield Coming(row["id"], row["k"], row["ts"], low, version.watermark)
            low = version.watermark


def judge_lateness(name: str, late: Iterable[Row], came: Iterable[Coming], end: Callable[[int], int]) -> str | None:
    """``late`` are the messages that were over, and no others; ``end`` says when those of a time are."""
    ids = {row["id"] for row in late}
    for message in came:
        if message.over(end(message.ts)) is (message.id not in ids):
            return f"output {name}: {message} is {'' if message.id in ids else 'not '}among the late ones"
    return None


def judge_sources(late: Iterable[Row], messages: Sequence[Message], end: Callable[[int], int]) -> str | None:
    """Nothing is late but for what came before it from the same source."""
    by_id = {message.id: message for message in messages}
    for row in late:
        message = by_id[row["id"]]
        before = [m.ts for m in messages if m.partition == message.partition and m.frame < message.frame]
        if end(message.ts) > max(before, default=-(2**63)) - _LATENESS * TICK_MS:
            return f"{message} was late, though its source had said nothing that makes it so"
    return None


def window_end(ts: int) -> int:
    """The end of the tumbling window that a time is in."""
    return start_of(ts, 20) + _SIZE_MS


def _last_hop_end(ts: int) -> int:
    return start_of(ts, 20) + 30 * TICK_MS


def _late(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    views, came = sources["views"], list(comings(lives, "by-k"))
    for late, end in (("plain-late", window_end), ("hops-late", _last_hop_end), ("dropped", lambda ts: ts + 1)):
        if wrong := judge_lateness(late, outputs[late], came, end) or judge_sources(outputs[late], views, end):
            return wrong
    if wrong := in_windows("plain", outputs["plain"], outputs["plain-late"], views):
        return wrong
    ids = columns([*outputs["timely"], *outputs["dropped"]], "id")
    return differ("timely", ids, [(view.id,) for view in views]) or _hopped(outputs, came)


def in_windows(name: str, rows: Sequence[Row], late: Sequence[Row], messages: Sequence[Message]) -> str | None:
    """Each message once in its tumbling window, or among what is late; one result a window and key."""
    windows = columns(rows, "k", "window_start")
    if wrong := differ(name, windows, set(windows)):
        return wrong
    gone = {row["id"] for row in late}
    found = [(row["k"], row["window_start"], id_) for row in rows for id_ in row["ids"]]
    wanted = [(m.k, start_of(m.ts, 20), m.id) for m in messages if m.id not in gone]
    return differ(name, found, wanted) or differ(f"late {name}", columns(late, "id"), [(id_,) for id_ in gone])


def _hopped(outputs: Outputs, came: Sequence[Coming]) -> str | None:
    """A message is in each of its windows that isn't over, and late when none is left."""
    held: dict[int, list[int]] = defaultdict(list)
    for row in outputs["hops"]:
        for id_ in row["ids"]:
            held[id_].append(row["window_start"])
    gone = columns(outputs["hops-late"], "id")
    for message in came:
        last = start_of(message.ts, 20)
        starts = [start for start in (last - _SIZE_MS, last) if message.ts < start + 30 * TICK_MS]
        over = {start: message.over(start + 30 * TICK_MS) for start in starts}
        found = held.pop(message.id, [])
        must = [start for start in starts if over[start] is False]
        may = [start for start in starts if over[start] is not True]
        if len(found) != len(set(found)) or not set(must) <= set(found) <= set(may):
            return f"output hops: {message} is in the windows {found}, not in {must} or {may}"
        if gone.count((message.id,)) != (not found):
            return f"output hops: {message} is in the windows {found}, and {gone.count((message.id,))} times late"
    return f"output hops: {dict(held)} came from nowhere" if held else None


def _late_panes(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    views, came = sources["views"], list(comings(lives, "by-k"))

    def end(ts: int) -> int:
        return window_end(ts) + _ALLOWED * TICK_MS

    for name, accumulating in (("growing", True), ("apart", False)):
        late = outputs[f"{name}-late"]
        wrong = (
            judge_lateness(f"{name}-late", late, came, end)
            or judge_sources(late, views, end)
            or judge_panes(name, outputs[name], late, came, accumulating=accumulating)
        )
        if wrong:
            return wrong
    return None


def judge_panes(
    name: str, rows: Sequence[Row], late: Sequence[Row], came: Sequence[Coming], *, accumulating: bool
) -> str | None:
    """Panes of tumbling windows are as they have to be, and with what is late they have each message once."""
    gone = {row["id"] for row in late}
    counted: dict[tuple[int, int], list[Coming]] = defaultdict(list)
    for message in came:
        if message.id not in gone:
            counted[message.k, start_of(message.ts, 20)].append(message)
    if len(gone) != len(late):
        return f"late {name}: {columns(late, 'id')}"
    panes: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        panes[row["k"], row["window_start"]].append(row)
    if panes.keys() != counted.keys():
        return f"output {name}: windows {panes.keys() - counted.keys()}, none for {counted.keys() - panes.keys()}"
    for window, messages in counted.items():
        found = sorted(panes[window], key=lambda row: int(row["pane_index"]))
        if wrong := _pane_by_pane(found, messages, accumulating=accumulating):
            return f"output {name}, window {window}: {wrong} in {found} of {messages}"
    return None


def _pane_by_pane(panes: Sequence[Row], messages: Sequence[Coming], *, accumulating: bool) -> str | None:
    kinds = [pane["pane"] for pane in panes]
    if [pane["pane_index"] for pane in panes] != list(range(len(panes))):
        return "indexes that aren't 0, 1, 2"
    if sorted(kinds, key=("early", "on_time", "late").index) != kinds or kinds.count("on_time") > 1:
        return "panes out of order"
    kind_of: dict[int, str] = {}
    seen: list[int] = []
    for pane in panes:
        ids = list(pane["ids"])
        if accumulating and ids[: len(seen)] != seen:
            return "a pane that isn't the one before and more"
        new = ids[len(seen) :] if accumulating else ids
        if not new and not (accumulating and pane["pane"] == "on_time"):
            return "a pane for nothing"
        seen += new
        kind_of |= dict.fromkeys(new, pane["pane"])
    if seen != [message.id for message in messages]:
        return "other messages, or another order"
    return _kinds(kind_of, messages)


def _kinds(kind_of: Mapping[int, str], messages: Sequence[Coming]) -> str | None:
    for message in messages:
        if message.over(window_end(message.ts)) is (kind_of[message.id] != "late"):
            return f"{message} in a pane that is {kind_of[message.id]}"
    return None


CASES = (
    AppCase("app-late", {"views": 2}, _declare_late, wrong_by_lives=_late, disorder=_DISORDER),
    AppCase("app-late-panes", {"views": 2}, _declare_late_panes, wrong_by_lives=_late_panes, disorder=_DISORDER),
)
