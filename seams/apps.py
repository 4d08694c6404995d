"""The app of a case, built with the public API. ``oracle.py`` says what must come of it, and shares no code with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
from typing_extensions import override

import headrace as hr
from seams.factors import FROM_FILES, Case
from seams.messages import TIME_TYPES, Columns

APP = "seams"
INPUT, FACTS, OUT, MORE = "orders", "facts", "out", "more"
FIRST_SHUFFLE, FACTS_SHUFFLE, SECOND_SHUFFLE = "by-key", "facts-by-key", "again"
LATENESS = "12s"
IDLE_MS = 300
BUCKET_MS = 5_000
KEYS: Mapping[str, tuple[str, ...]] = {
    "tumbling": ("k", "window_start"),
    "hopping": ("k", "window_start"),
    "session": ("k", "window_start"),
    "flat-map": ("n", "w"),
    "task": ("k", "ts"),
}
"""What names a result of a step; without, it is the number of its message."""

Declare = Callable[["Declaring", hr.Stream], hr.Stream]


class Declaring:
    """Builds the app of a case; ``changed`` gives its second version, ``partitions`` those of its first shuffle."""

    def __init__(self, case: Case, home: Path, *, changed: bool = False, partitions: int | None = None) -> None:
        self.case = case
        self.partitions = partitions
        self.home = home
        self.columns = Columns(case)
        upcoming = case["move"] == "startpoint"
        self.start: Any = "upcoming" if upcoming else "oldest"
        self.app = hr.App(APP, home=str(home), checkpoint_interval="50ms", intermediate_partitions=2)
        orders = self.read(INPUT, self.columns.orders)
        flow = orders.filter(pl.col("n") >= 0)
        if changed:
            flow = flow.filter(pl.col("n") % 4 != 3)
            flow.select("n").send_to(self.app.output(MORE))
        flow = STEPS[case["step"]](self, flow)
        self.write(BEHIND[case["behind"]](self, flow))

    def read(self, name: str, columns: Mapping[str, pl.DataType], *, timed: bool = True) -> hr.Stream:
        """An input."""
        time: dict[str, Any] = {"event_time": "ts", "lateness": LATENESS} if timed else {}
        if timed and self.case["idle"] == "timeout":
            time["idle_timeout"] = f"{IDLE_MS}ms"
        kind = self.case["input"]
        system = hr.io.files(self.home / name / f"*.{kind}") if kind in FROM_FILES else None
        return self.app.input(name, dict(columns), system=system, start=self.start, **time)

    def facts(self, *, timed: bool = True) -> hr.Stream:
        """The second input, without what only moves time on."""
        facts = self.read(FACTS, self.columns.facts, timed=timed)
        return facts.filter(pl.col("n") >= 0) if timed else facts

    def by(self, flow: hr.Stream, key: str) -> hr.Stream:
        """The flow behind the first shuffle."""
        return flow.partition_by(key, id=FIRST_SHUFFLE, partitions=self.partitions)

    def write(self, flow: hr.Stream) -> None:
        """Send the results to the output of the case."""
        kind, case = self.case["output"], self.case
        key: list[str] = []
        system: Any = None
        if kind in FROM_FILES:
            system = hr.io.files(self.home / "results", format=kind)
        elif kind == "delta":
            system = hr.io.delta(self.home / "delta")
        elif kind.startswith("sql"):
            named = {"tumbling": ("b", "window_start"), "session": ("b", "window_start"), "rows": ("b", *names(case))}
            keys = named.get(case["behind"], names(case)) if kind == "sql-by-key" else ()
            system = hr.io.sql(f"sqlite:///{self.home / 'results.db'}", "results", key=list(keys) or None)
        elif kind == "keyed-log":
            key = ["k" if case["behind"] == "nothing" else "b"]
        flow.send_to(self.app.output(OUT, system=system, partitions=3 if key else None), key=key or None)


def names(case: Case) -> tuple[str, ...]:
    """The columns that name a result of the case's step."""
    return KEYS.get(case["step"], ("n",))


# -- steps ------------------------------------------------------------------------------------------


def _filter(_: Declaring, flow: hr.Stream) -> hr.Stream:
    return flow.filter(pl.col("n") % 3 != 0).with_columns(w=pl.col("n") * 2)


def _with_w(at: Declaring) -> dict[str, pl.DataType]:
    return at.columns.orders | {"w": pl.Int64()}


def _map(at: Declaring, flow: hr.Stream) -> hr.Stream:
    return flow.map(lambda row: {**row, "w": row["n"] + 1}, schema=_with_w(at))


def _flat_map(at: Declaring, flow: hr.Stream) -> hr.Stream:
    return flow.flat_map(lambda row: [{**row, "w": copy} for copy in range(row["n"] % 3)], schema=_with_w(at))


def _map_batches(at: Declaring, flow: hr.Stream) -> hr.Stream:
    def odd(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.filter(pl.col("n") % 2 == 1).with_columns(w=-pl.col("n"))

    return flow.map_batches(odd, _with_w(at))


def _merge(_: Declaring, flow: hr.Stream) -> hr.Stream:
    even = flow.filter(pl.col("n") % 2 == 0).with_columns(w=pl.lit(0, pl.Int64))
    odd = flow.map_batches(lambda rows: rows.filter(pl.col("n") % 2 == 1)).with_columns(w=pl.lit(1, pl.Int64))
    return even.merge(odd)


def _aggregates(case: Case) -> dict[str, Any]:
    value = pl.col("v")
    chosen: dict[str, dict[str, Any]] = {
        "count": {"a": value.count(), "c": value.null_count()},
        "sum": {"a": value.sum(), "c": hr.sum("n")},
        "mean": {"a": value.mean()},
        "extremes": {"a": value.min(), "c": value.max()},
        "first-last": {"a": hr.aggregates.first("n"), "c": hr.aggregates.last("v")},
        "distinct": {"a": hr.aggregates.n_unique("v")},
        "top": {"a": hr.max("n")},
    }
    return {"n": pl.len(), **chosen[case["aggregate"]]}


def _window(shape: Any) -> Declare:
    def declare(at: Declaring, flow: hr.Stream) -> hr.Stream:
        return at.by(flow, "k").window(shape, key="k", id="window").agg(**_aggregates(at.case))

    return declare


def _count_window(at: Declaring, flow: hr.Stream) -> hr.Stream:
    window = at.by(flow, "k").window(hr.windows.count(4), key="k", id="window")
    return window.agg(n=pl.len(), total=hr.sum("n"))


def _deduplicate(at: Declaring, flow: hr.Stream) -> hr.Stream:
    return at.by(flow, "n").deduplicate("n", within="1s", id="once")


def _join(at: Declaring, flow: hr.Stream) -> hr.Stream:
    facts = at.facts().select("k", "ts", g="n").partition_by("k", id=FACTS_SHUFFLE)
    pairs = at.by(flow, "k").join(facts, "k", within="2s", how="left", id="pairs")
    return pairs.select("n", "k", "v", "ts", "g")


def _join_latest(at: Declaring, flow: hr.Stream) -> hr.Stream:
    facts = at.facts().select("n", "f").partition_by("n", id=FACTS_SHUFFLE)
    return at.by(flow, "n").join_latest(facts, "n", ttl="1h", id="latest").select("n", "k", "v", "f")


def _own_table(at: Declaring, flow: hr.Stream) -> hr.Stream:
    table = at.app.table("last", "k", {"k": at.columns.orders["k"], "last": pl.Int64()})
    by_key = at.by(flow.filter(pl.col("k").is_not_null()), "k")
    by_key.select("k", last="n").send_to(table)
    return by_key.join(table, how="left")


def _filled_table(at: Declaring, flow: hr.Stream) -> hr.Stream:
    table = at.app.table("known", "k", {"k": at.columns.orders["k"], "f": pl.Int64()})
    at.facts().select("k", "f").partition_by("k", id=FACTS_SHUFFLE).send_to(table)
    return at.by(flow, "k").join(table, how="left")


def _side_table(at: Declaring, flow: hr.Stream) -> hr.Stream:
    facts = at.facts(timed=False)
    table = at.app.table("known", "k", side_inputs=facts, kind="global")
    return flow.join(table, how="left").select("n", "k", "v", "ts", "f")


def _versions(at: Declaring, flow: hr.Stream) -> hr.Stream:
    columns = {"k": at.columns.orders["k"], "version": pl.Int64(), "ts": at.columns.orders["ts"]}
    table = at.app.table("versions", "k", columns, versions="1h")
    facts = at.facts().partition_by("k", id=FACTS_SHUFFLE)
    facts.select("k", "ts", version="n").send_to(table)
    return at.by(flow, "k").join(table, how="left", id="as-of").select("n", "k", "v", "ts", "version")


def _ms_of(moment: Any) -> int:
    if isinstance(moment, int):
        return moment
    return int(pl.Series([moment], dtype=pl.Datetime("us")).dt.timestamp("ms")[0])


class _CountsText(hr.tasks.Task):
    """Counts the messages of each key and bucket of time, and sends the count by a timer at the bucket's end."""

    counts = hr.tasks.Store(key={"k": pl.String(), "end": pl.Int64()}, value={"n": pl.Int64()})

    def __init__(self, integers: bool) -> None:
        self.integers = integers

    @override
    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        end = (_ms_of(message["ts"]) // BUCKET_MS + 1) * BUCKET_MS
        before = self.counts.get((message["k"], end)) or {"n": 0}
        self.counts.put((message["k"], end), {"n": before["n"] + 1})
        out.set_timer(message["k"], end, name=str(end))

    @override
    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        count = self.counts.get((timer.key, timer.time))
        time: Any = timer.time
        if not self.integers:
            time = pl.Series([timer.time], dtype=pl.Datetime("ms"))[0]
        out.send("counts", {"k": timer.key, "n": (count or {"n": -1})["n"], "ts": time})
        self.counts.delete((timer.key, timer.time))


class _CountsIntegers(_CountsText):
    counts = hr.tasks.Store(key={"k": pl.Int64(), "end": pl.Int64()}, value={"n": pl.Int64()})


def _task(at: Declaring, flow: hr.Stream) -> hr.Stream:
    task = (_CountsIntegers if at.case["key"] == "ints" else _CountsText)(at.case["time"] == "ints")
    columns = {"k": at.columns.orders["k"], "n": pl.Int64(), "ts": TIME_TYPES[at.case["time"]]}
    by_key = at.by(flow.filter(pl.col("k").is_not_null()), "k")
    return by_key.process(task, {"counts": columns}, id="counting")["counts"]


STEPS: Mapping[str, Declare] = {
    "filter": _filter,
    "map": _map,
    "flat-map": _flat_map,
    "map-batches": _map_batches,
    "merge": _merge,
    "tumbling": _window(hr.tumbling("3s")),
    "hopping": _window(hr.hopping("4s", every="2s")),
    "sliding": _window(hr.windows.sliding("2s")),
    "session": _window(hr.session("1s")),
    "count-window": _count_window,
    "deduplicate": _deduplicate,
    "join": _join,
    "join-latest": _join_latest,
    "own-table": _own_table,
    "filled-table": _filled_table,
    "side-table": _side_table,
    "versions": _versions,
    "task": _task,
}

# -- what comes behind a second shuffle -------------------------------------------------------------


def _again(flow: hr.Stream) -> hr.Stream:
    return flow.with_columns(b=pl.col("n").cast(pl.Int64) % 3).partition_by("b", id=SECOND_SHUFFLE)


def _behind(shape: Any) -> Declare:
    def declare(_: Declaring, flow: hr.Stream) -> hr.Stream:
        return _again(flow).window(shape, key="b", id="behind").agg(n=pl.len(), m=hr.sum("n"))

    return declare


def _rows(at: Declaring, flow: hr.Stream) -> hr.Stream:
    kept = list(dict.fromkeys([*names(at.case), "n"]))
    return _again(flow).filter(pl.col("n") % 2 == 0).select("b", *kept)


BEHIND: Mapping[str, Declare] = {
    "nothing": lambda _, flow: flow,
    "rows": _rows,
    "tumbling": _behind(hr.tumbling("7s")),
    "session": _behind(hr.session("4s")),
}


def build(case: Case, home: Path, *, changed: bool = False, partitions: int | None = None) -> hr.App:
    """The app of a case, or another version of it."""
    return Declaring(case, home, changed=changed, partitions=partitions).app
