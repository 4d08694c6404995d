"""A small app that can change in many ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

import headrace as hr

COLUMNS: dict[str, Any] = {"k": pl.Int64, "g": pl.Int64, "v": pl.Int64, "ts": pl.Int64}
SHAPES: dict[str, Any] = {
    "10s": lambda: hr.tumbling("10s"),
    "20s": lambda: hr.tumbling("20s"),
    "hops": lambda: hr.hopping("20s", every="10s"),
    "session": lambda: hr.session("5s"),
}
_AGGREGATES: dict[str, Callable[[], Any]] = {
    "count": hr.count,
    "sum": lambda: hr.sum("v"),
    "twice": (pl.col("v") * 2).sum,
    "min": lambda: hr.min("v"),
    "max": lambda: hr.max("v"),
}
OPTIONAL = ("s", "lo", "hi")
Row = dict[str, int | None]


@dataclass(frozen=True)
class Version:
    """What the app is like. Steps behind the shuffle ``p`` are there only if it is."""

    inputs: tuple[str, ...] = ("a",)
    more_columns: bool = False
    without: int | None = None
    plus: int = 0
    raw: bool = True
    front: bool = False
    shuffle: bool = True
    key: str = "k"
    partitions: int = 2
    window: str | None = "w"
    shape: str = "10s"
    aggregates: Mapping[str, str] = field(default_factory=lambda: {"n": "count"})
    second: bool = False
    once: tuple[str, ...] = ()
    passes: bool = False
    task: bool = False
    fills: tuple[str, ...] = ()
    more_rates: bool = False
    guarantee: str = "exactly_once"
    interval: str = "10s"
    backwards: bool = False

    def valid(self) -> Version:
        """The version without what can't be: a table is looked up by its key, and somebody reads each shuffle."""
        fills = self.fills if self.shuffle and self.key == "k" else ()
        window = self.window if self.shuffle else None
        seen = window or self.once or self.passes or self.task or fills
        return replace(
            self,
            fills=fills,
            window=window,
            second=self.second and window is not None,
            once=self.once if self.shuffle else (),
            task=self.task and self.shuffle,
            passes=self.shuffle and (self.passes or not seen),
            raw=self.raw or not (self.front or self.shuffle),
        )

    @property
    def combines(self) -> bool:
        """Partial results could cross the shuffle."""
        return self.window is not None and not (self.once or self.passes or self.task or self.fills)

    def outputs(self) -> set[str]:
        """The outputs by name."""
        there = {
            "raw": self.raw,
            "fronts": self.front,
            "windows": self.window is not None,
            "totals": self.second,
            "onces": bool(self.once),
            "passed": self.passes,
            "counted": self.task,
            "rated": bool(self.fills),
        }
        return {name for name, is_there in there.items() if is_there}


class _Counting(hr.tasks.Task):
    counts = hr.tasks.Store(key={"k": pl.Int64, "g": pl.Int64}, value={"n": pl.Int64})

    def process(self, message: dict[str, int], out: hr.tasks.Out) -> None:
        key = message["k"], message["g"]
        n = (self.counts.get(key) or {"n": 0})["n"] + 1
        self.counts.put(key, {"n": n})
        out.send("counts", {"k": key[0], "g": key[1], "n": n})


def declared(version: Version) -> hr.App:
    """The app of this version."""
    app = hr.App("changing", guarantee=version.guarantee, checkpoint_interval=version.interval)  # type: ignore[arg-type]
    columns = COLUMNS | ({"x": pl.Int64} if version.more_columns else {})
    names = version.inputs[::-1] if version.backwards else version.inputs
    inputs = [app.input(name, columns, event_time="ts", lateness="40s") for name in names]
    flow = inputs[0].merge(*inputs[1:]) if len(inputs) > 1 else inputs[0]
    if version.without is not None:
        flow = flow.filter(pl.col("v") % 3 != version.without)
    flow = flow.with_columns(v=pl.col("v") + version.plus)
    parts = [lambda: _before(app, flow, version), lambda: _behind(app, flow, version)]
    for part in parts[::-1] if version.backwards else parts:
        part()
    return app


def _before(app: hr.App, flow: hr.Stream, version: Version) -> None:
    if version.raw:
        flow.select("k", "v").send_to(app.output("raw"))
    if version.front:
        window = flow.window(hr.tumbling("10s"), key="k", id="w0").agg(n=hr.count())
        window.select("k", "window_start", "n").send_to(app.output("fronts"))


def _behind(app: hr.App, flow: hr.Stream, version: Version) -> None:
    if not version.shuffle:
        return
    flow = flow.partition_by(version.key, id="p", partitions=version.partitions)
    if version.window is not None:
        _windows(app, flow, version, version.window)
    if version.once:
        flow.deduplicate(version.once, within="1000h", id="d").select("k", "g").send_to(app.output("onces"))
    if version.passes:
        flow.select("k", "v").send_to(app.output("passed"))
    if version.task:
        counts = {"counts": {"k": pl.Int64, "g": pl.Int64, "n": pl.Int64}}
        app.task(_Counting(), {"in": flow}, counts, id="t")["counts"].send_to(app.output("counted"))
    if version.fills:
        _rates(app, flow, version)


def _windows(app: hr.App, flow: hr.Stream, version: Version, id_: str) -> None:
    aggregates = {name: _AGGREGATES[kind]() for name, kind in version.aggregates.items()}
    windows = flow.window(SHAPES[version.shape](), key=["k", "g"], id=id_).agg(**aggregates)
    missing = {name: pl.lit(-1, dtype=pl.Int64) for name in OPTIONAL if name not in version.aggregates}
    there = [name for name in OPTIONAL if name in version.aggregates]
    filled = windows.with_columns(**missing) if missing else windows
    assert len(there) + len(missing) == len(OPTIONAL)
    filled.select("k", "g", "window_start", "n", *OPTIONAL).send_to(app.output("windows"))
    if version.second:
        again = windows.partition_by("k", id="p2", partitions=2)
        totals = again.window(hr.tumbling("100s"), key="k", id="w2").agg(total=hr.sum("n"))
        totals.select("k", "total").send_to(app.output("totals"))


def _rates(app: hr.App, flow: hr.Stream, version: Version) -> None:
    columns: dict[str, Any] = {"k": pl.Int64, "rate": pl.Int64}
    if version.more_rates:
        columns["more"] = pl.Int64
    table = app.table("tab", key="k", schema=columns)
    for name in version.fills:
        app.input(name, columns).partition_by("k", id=f"p{name}").send_to(table)
    joined = flow.join(table, how="left")
    if not version.more_rates:
        joined = joined.with_columns(more=pl.lit(-1, dtype=pl.Int64))
    joined.select("k", "v", "rate", "more").send_to(app.output("rated"))
