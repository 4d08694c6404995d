"""An app of count windows, side by side and overlapping.

What they hold follows from the order in which the messages of a key came, and that is known from the commits of the
task that counts: each window is compared, message by message and in order. What has come there is each message of
the source once, so what is incomplete at the end is as determined as all else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headrace.api.aggregates import count, implode
from headrace.api.windows import count as count_window
from headrace.app import App
from simulator.case import AppCase, read
from simulator.expected import Outputs, Sources, columns, differ
from simulator.lives import Life, Lives, arrivals


def _declare(app: App) -> None:
    by_k = read(app, "views").partition_by("k", id="by-k", partitions=1)
    three = by_k.window(count_window(3), key="k", id="by-threes").agg(n=count(), ids=implode("id"))
    three.send_to(app.output("threes", partitions=1))
    four = by_k.window(count_window(5, every=2), key="k", id="by-fives").agg(n=count(), ids=implode("id"))
    four.send_to(app.output("fives", partitions=1))


def by_key(life: Life, stream: str) -> dict[int, list[int]]:
    """The ids that a task took from a stream, by key, in order."""
    ids: dict[int, list[int]] = defaultdict(list)
    for arrival in arrivals(life):
        for row in arrival.rows if arrival.stream == stream else ():
            ids[row["k"]].append(row["id"])
    return ids


def side_by_side(ids: Sequence[int], size: int) -> list[Sequence[int]]:
    """Windows of so many messages each; the last one may have less."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def overlapping(ids: Sequence[int], size: int, every: int) -> list[Sequence[int]]:
    """The last ``size`` each time that ``every`` more have come; at the end what the next one has by then."""
    windows = [ids[max(0, end - size) : end] for end in range(every, len(ids) + 1, every)]
    if len(ids) % every:
        windows.append(ids[max(0, (len(ids) // every + 1) * every - size) :])
    return windows


def _wrong(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    counted = [item for life in lives["by-k"] for item in by_key(life, "by-k").items()]
    came = [(id_,) for _, ids in counted for id_ in ids]
    if wrong := differ("by-k", came, [(view.id,) for view in sources["views"]]):
        return wrong
    for name, windows in (
        ("threes", [(k, ids) for k, all_ in counted for ids in side_by_side(all_, 3)]),
        ("fives", [(k, ids) for k, all_ in counted for ids in overlapping(all_, 5, 2)]),
    ):
        found = [(k, n, tuple(ids)) for k, n, ids in columns(outputs[name], "k", "n", "ids")]
        if wrong := differ(name, found, [(k, len(ids), tuple(ids)) for k, ids in windows]):
            return wrong
    return None


CASES = (AppCase("app-counted", {"views": 2}, _declare, wrong_by_lives=_wrong),)
