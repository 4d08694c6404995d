"""Every built-in aggregate, with disorder, lateness, several partitions and restarts, against plain Python.

The oracle keeps all messages of each window and key in a list and looks at the list.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples

SIZE = 10
LATENESS = 15

Value = int | None
Row = tuple[str | None, int, Value]

AGGREGATES: dict[str, tuple[hr.aggregates.Aggregate, Callable[[Sequence[Value]], Any]]] = {
    "rows": (hr.count(), len),
    "values": (hr.count("value"), lambda vs: len(known(vs))),
    "sum": (hr.sum("value"), lambda vs: sum(known(vs))),
    "min": (hr.min("value"), lambda vs: min(known(vs), default=None)),
    "max": (hr.max(pl.col("value") * 2), lambda vs: max((2 * v for v in known(vs)), default=None)),
    "mean": (hr.mean("value"), lambda vs: sum(known(vs)) / len(known(vs)) if known(vs) else None),
    "all": (hr.aggregates.implode("value"), list),
    "ones": (hr.sum(pl.lit(1)), len),
    "twos": (hr.aggregates.implode(pl.lit(2)), lambda vs: [2] * len(vs)),
}


def known(values: Sequence[Value]) -> list[int]:
    return [value for value in values if value is not None]


@dataclass(frozen=True)
class Feed:
    partition: int
    rows: list[Row]


@dataclass(frozen=True)
class Restart:
    checkpoint: bool


rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(-30, 120), st.one_of(st.none(), st.integers(-9, 9))),
    min_size=1,
    max_size=6,
)
guarantees = st.sampled_from(["exactly_once", "at_least_once"])
feeds = st.builds(Feed, st.integers(0, 2), rows)


class Oracle:
    """Messages that are not late, by window and key; the watermark is the lowest of all partitions."""

    def __init__(self) -> None:
        self.windows: dict[tuple[str | None, int], list[Value]] = {}
        self.late = 0
        self._highest: dict[int, int] = {}

    def feed(self, feed: Feed) -> None:
        time = min(self._highest.values()) - LATENESS if len(self._highest) == 3 else -math.inf
        for member, ts, value in feed.rows:
            start = ts // SIZE * SIZE
            if start + SIZE <= time:
                self.late += 1
            else:
                self.windows.setdefault((member, start), []).append(value)
        self._highest[feed.partition] = max(
            *(ts for _, ts, _ in feed.rows), self._highest.get(feed.partition, -999), -999
        )

    def results(self) -> dict[tuple[str | None, int], dict[str, Any]]:
        return {at: {name: of(values) for name, (_, of) in AGGREGATES.items()} for at, values in self.windows.items()}


def counting(lateness: int = LATENESS, guarantee: Any = "exactly_once") -> hr.App:
    """Two stages: a shuffle by key, then windows."""
    app = hr.App("counting", intermediate_partitions=2, guarantee=guarantee)
    schema = {"member": pl.String, "ts": pl.Int64, "value": pl.Int64}
    views = app.input("views", schema, event_time="ts", lateness=f"{lateness}ms")
    counts = (
        views.partition_by("member", id="by-member")
        .window(hr.tumbling(f"{SIZE}ms"), key="member", id="counts")
        .agg(**({name: agg for name, (agg, _) in AGGREGATES.items()}))
    )
    counts.send_to(app.output("counts-out"))
    return app


def batch(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, {"member": pl.String, "ts": pl.Int64, "value": pl.Int64}, orient="row")


def results(output: pl.DataFrame) -> dict[tuple[str | None, int], list[dict[str, Any]]]:
    """The results for each window and key; there are several only after a restart."""
    found: dict[tuple[str | None, int], list[dict[str, Any]]] = {}
    for row in output.to_dicts():
        assert row.pop("window_end") == row["window_start"] + SIZE
        found.setdefault((row.pop("member"), row.pop("window_start")), []).append(row)
    return found


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.one_of(feeds, feeds, feeds, st.just(Restart(checkpoint=True))), max_size=25))
def test_every_aggregate_exactly_over_disorder_and_clean_restarts(history: list[Feed | Restart]) -> None:
    oracle, late = Oracle(), 0
    with counting().test(3) as t:
        for step in history:
            if isinstance(step, Restart):
                late += t.counter("late")
                t.restart(checkpoint=True)
                continue
            t.feed("views", batch(step.rows), partition=step.partition)
            oracle.feed(step)
        t.end()
        assert t.ended
        late += t.counter("late")
        assert results(t.read("counts-out")) == {at: [values] for at, values in oracle.results().items()}
    assert late == oracle.late


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.one_of(feeds, feeds, st.builds(Restart, st.booleans())), max_size=25), guarantees)
def test_any_restarts(history: list[Feed | Restart], guarantee: Any) -> None:
    """Crashes at any moment; the work since the last checkpoint is repeated. Nothing is late here."""
    expected: dict[tuple[str | None, int], list[Value]] = {}
    with counting(lateness=10_000, guarantee=guarantee).test(3) as t:
        for step in history:
            if isinstance(step, Restart):
                t.restart(checkpoint=step.checkpoint)
                continue
            t.feed("views", batch(step.rows), partition=step.partition)
            for member, ts, value in step.rows:
                expected.setdefault((member, ts // SIZE * SIZE), []).append(value)
        t.end()
        found = results(t.read("counts-out", committed=True))
    assert found.keys() == expected.keys()
    for at, values in expected.items():
        if guarantee == "exactly_once":
            assert [row["rows"] for row in found[at]] == [len(values)]
            assert sorted(map(repr, found[at][0]["all"])) == sorted(map(repr, values))
        for row in found[at]:
            assert row["rows"] >= len(values)
            assert row["min"] == min(known(values), default=None)
            assert set(row["all"]) == set(values)


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(feeds, max_size=15))
def test_windows_without_a_key_count_per_task(history: list[Feed]) -> None:
    app = hr.App("counting")
    views = app.input(
        "views", {"member": pl.String, "ts": pl.Int64, "value": pl.Int64}, event_time="ts", lateness="10s"
    )
    views.window(hr.tumbling(f"{SIZE}ms"), key=None, id="counts").agg(n=hr.count()).send_to(app.output("out"))
    expected: dict[tuple[int, int], int] = {}
    with app.test(3) as t:
        for feed in history:
            t.feed("views", batch(feed.rows), partition=feed.partition)
            for _, ts, _ in feed.rows:
                at = (feed.partition, ts // SIZE)
                expected[at] = expected.get(at, 0) + 1
        t.end()
        assert sorted(t.read("out")["n"]) == sorted(expected.values())
