"""State that is dealt to another number of tasks: they go on as if there had always been that many.

Each case is a stage with state, behind a shuffle. Its tasks are driven directly: messages are dealt to them as the
shuffle deals them, and state as the plan says (``plan.inventory``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.plan.chain_plan import chain_plan
from headrace.plan.inventory import inventory_of
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.rows.hashing import partition_of, split
from headrace.stores import pieces, versions
from headrace.stores.base import Share, StateStore
from headrace.stores.database import Batch, Database, KeySpace, PartOfBatch
from headrace.systems.base import StreamInfo
from headrace.task.calls import Calls
from headrace.task.event_time import Progress, TimesCheckpoint
from headrace.task.host.commits import columns_for
from headrace.task.metrics import TaskMetrics
from headrace.task.scope import TaskScope
from headrace.task.task import Chain

VIEWS = {"member": pl.String, "shop": pl.Int64, "ts": pl.Int64, "n": pl.Int64}
Flow = Callable[[str], hr.Stream]
Declare = Callable[[hr.App, Flow], hr.Stream]
Rows = list[tuple[str | None, int, int, int]]
Step = tuple[str, Any]
Emitted = list[tuple[Any, ...]]


class Visits(hr.tasks.Task):
    """Counts by member and shop; says what a member had when nothing has come for a while."""

    seen = hr.tasks.Store(key={"member": pl.String, "shop": pl.Int64}, value={"n": pl.Int64})

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        key = message["member"], message["shop"]
        before = self.seen.get(key) or {"n": 0}
        self.seen.put(key, {"n": before["n"] + 1})
        out.set_timer(message["member"], message["ts"] + 5, name=str(message["shop"] % 2))

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        for (member, shop), record in self.seen.items(timer.key):
            out.send("quiet", {"member": member, "shop": shop, "at": timer.time, "n": record["n"]})


def windowed(shape: Any, **options: Any) -> Declare:
    def declare(_: hr.App, flow: Flow) -> hr.Stream:
        window = flow("views").window(shape, key=["shop", "member"], id="kept", **options)
        return window.agg(n=pl.len(), most=pl.col("n").max(), mean=pl.col("n").mean())

    return declare


def as_of(app: hr.App, flow: Flow) -> hr.Stream:
    table = app.table("versions", ["member", "shop"], VIEWS, versions="20ms")
    flow("others").send_to(table)
    return flow("views").join(table, how="left", id="kept")


def looked_up(storage: str) -> Declare:
    def declare(app: hr.App, flow: Flow) -> hr.Stream:
        table = app.table("rows", ["shop", "member"], VIEWS, storage=storage, ttl="1h")
        flow("others").send_to(table)
        return flow("views").join(table, how="left", id="kept")

    return declare


CASES: dict[str, Declare] = {
    "tumbling": windowed(hr.tumbling("10ms")),
    "hopping": windowed(hr.hopping("10ms", every="4ms")),
    "panes": windowed(hr.tumbling("10ms"), early=hr.triggers.every(2), allowed_lateness="5ms"),
    "sliding": windowed(hr.windows.sliding("10ms")),
    "session": windowed(hr.session("5ms")),
    "count": windowed(hr.windows.count(3)),
    "overlapping count": windowed(hr.windows.count(4, every=2)),
    "global": windowed(hr.windows.global_(), early=hr.triggers.every(2)),
    "deduplicate": lambda _, flow: flow("views").deduplicate("member", within="10ms", id="kept"),
    "inner join": lambda _, flow: flow("views").join(flow("others"), on=["member", "shop"], within="5ms", id="kept"),
    "full join": lambda _, flow: flow("views").join(
        flow("others"), on=["member", "shop"], within="5ms", how="full", id="kept"
    ),
    "join of the latest": lambda _, flow: flow("views").join_latest(flow("others"), on="member", ttl="1h", id="kept"),
    "table of versions": as_of,
    "table on disk": looked_up("disk"),
    "table in memory": looked_up("memory"),
    "low-level task": lambda _, flow: flow("views").process(
        Visits(), {"quiet": {"member": pl.String, "shop": pl.Int64, "at": pl.Int64, "n": pl.Int64}}, id="kept"
    )["quiet"],
}

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "cleo", "a member with a long name"]),
        st.integers(0, 2),
        st.integers(0, 30),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=8,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["views", "others"]), ROWS),
        st.tuples(st.just("watermark"), st.integers(0, 35)),
    ),
    max_size=8,
)


def ms(time: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(milliseconds=time)


def planned(case: str, tasks: int) -> Plan:
    app = hr.App("moving")

    def flow(name: str) -> hr.Stream:
        stream = app.input(name, VIEWS, event_time="ts", lateness="3ms")
        return stream.partition_by("member", id=f"{name}-p", partitions=tasks)

    CASES[case](app, flow).send_to(app.output("out"))
    graph = app.graph()
    return plan(graph, {id_: StreamInfo(id_, 1) for id_ in graph.streams if not id_.endswith("-p")}, tasks)


class Shuffle:
    """Deals what the first stages write."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self.dealt: list[tuple[str, int, pl.DataFrame]] = []

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        parts = split(rows, partition_of(rows, keys, self._tasks), self._tasks)
        self.dealt += [(stream, partition, part) for partition, part in parts]


@dataclass
class Sent:
    """What the tasks have sent."""

    rows: Emitted = field(default_factory=list)

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        self.rows += rows.rows()


class Stage:
    """All tasks of the stage with state, each with a database; and the stages before it, which keep nothing."""

    def __init__(self, case: str, tasks: int, folder: Path) -> None:
        self.plan = planned(case, tasks)
        self.shuffle, self.sent, calls = Shuffle(tasks), Sent(), Calls(lambda: None)
        read = {id_: stage for stage in self.plan.stages for id_ in stage.inputs}
        self.first = {
            name: Chain(chain_plan(self.plan, read[name]), self.shuffle, TaskMetrics(), calls)
            for name in ("views", "others")
            if name in read
        }
        self.stage = read["views-p"]
        self.tasks = [Chain(chain_plan(self.plan, self.stage), self.sent, TaskMetrics(), calls) for _ in range(tasks)]
        self.scopes = [TaskScope.of(self.plan, self.stage, task) for task in self.stage.tasks]
        self.watermark = 0
        self.databases = [Database(folder / f"{tasks}-{number}") for number in range(tasks)]
        for task, database in zip(self.tasks, self.databases, strict=True):
            task.tell_time(1000)
            for store in task.stores().values():
                store.attach(KeySpace(database, store.id))

    def begin(self, times: Sequence[TimesCheckpoint]) -> None:
        progress = dict.fromkeys(self.stage.inputs, Progress(self.watermark))
        for task, scope in zip(self.tasks, self.scopes, strict=True):
            if times:
                task.load(times[0], progress, scope)
            task.begin(scope.name)
            task.advance(progress)

    def run(self, steps: Iterable[Step]) -> None:
        for what, given_ in steps:
            if what == "watermark":
                self.watermark = max(self.watermark, given_)
                for task in self.tasks:
                    task.advance(dict.fromkeys(self.stage.inputs, Progress(self.watermark)))
            elif what in self.first:
                self.first[what].process(what, pl.DataFrame(given_, VIEWS, orient="row"))
                dealt, self.shuffle.dealt = self.shuffle.dealt, []
                for stream, partition, rows in dealt:
                    self.tasks[partition].process(stream, rows)

    def commit(self) -> list[TimesCheckpoint]:
        saved = []
        for task, scope, database in zip(self.tasks, self.scopes, self.databases, strict=True):
            batch = Batch()
            for store in task.stores().values():
                store.take_changes(1)
                store.persist(PartOfBatch(batch, store.id))
            database.write(batch)
            saved.append(task.save(TimesCheckpoint(watermark=self.watermark, partitions=[]), scope))
        return saved

    def take_over(self, donors: Sequence[dict[str, StateStore]], times: Sequence[TimesCheckpoint], at: int) -> None:
        """Take the shares of the donors' stores, as the inventory says, and go on from there."""
        parts = inventory_of(self.plan).stages[self.stage.name].parts.values()
        shares = {part.kept_as: part.dealing.by for part in parts if part.dealing.by}
        for number, (task, database) in enumerate(zip(self.tasks, self.databases, strict=True)):
            batch = Batch()
            for id_, store in task.stores().items():
                for stores in donors:
                    share = Share(number, len(self.tasks)).by(columns_for(id_, shares))
                    for change in stores[id_].whole(share):
                        store.apply(change)
                store.persist(PartOfBatch(batch, id_))
            database.write(batch)
        self.watermark = at
        self.begin(times)

    def close(self) -> None:
        for chain in (*self.first.values(), *self.tasks):
            chain.close()
        for database in self.databases:
            database.close()


@pytest.mark.parametrize("case", CASES)
def test_tasks_go_on_as_if_there_had_always_been_that_many(case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=examples(8), deadline=None)
    @given(first=STEPS, second=STEPS, before=st.integers(1, 3), after=st.integers(1, 3), small=st.booleans())
    def check(first: list[Step], second: list[Step], before: int, after: int, small: bool) -> None:
        with pytest.MonkeyPatch.context() as patch, ExitStack() as stages:
            patch.setattr(versions, "_SLACK_MIN_MS", 0)  # old versions go at each watermark, not now and then
            if small:
                patch.setattr(pieces, "PIECE_ROWS", 2)
            steps = first, [*second, ("watermark", 100)]
            moves(case, tmp_path_factory.mktemp("state"), steps, (before, after), stages)

    check()


def moves(
    case: str, folder: Path, steps: tuple[list[Step], list[Step]], counts: tuple[int, int], stages: ExitStack
) -> None:
    """Compare; ``stages`` closes those that are open, also when they differ."""
    first, second = steps
    before, after = counts
    always = stages.enter_context(closing(Stage(case, after, folder / "always")))
    always.begin([])
    always.run(first)
    always.sent.rows.clear()
    always.commit()
    always.run(second)

    with closing(Stage(case, before, folder / "old")) as old:
        old.begin([])
        old.run(first)
        times, at = old.commit(), old.watermark
    new = stages.enter_context(closing(Stage(case, after, folder / "new")))
    with closing(Stage(case, before, folder / "old")) as donors:
        new.take_over([task.stores() for task in donors.tasks], times, at)
    new.run(second)
    assert sorted(new.sent.rows, key=repr) == sorted(always.sent.rows, key=repr)
    new.commit()
    always.commit()
    assert [kept(task) for task in new.tasks] == [kept(task) for task in always.tasks]


def kept(task: Chain) -> dict[str, list[str]]:
    """What people see of a task's state, in any order."""
    return {
        id_: sorted(repr(row) for rows in store.frames() for row in rows.rows(named=True))
        for id_, store in task.stores().items()
    }


_VIEW = {"member": "ann", "shop": 1, "ts": 12, "n": 4}
_SO_FAR = {"shop": 1, "member": "ann", "n": 1, "most": 4, "mean": 4.0}
SEEN: dict[str, dict[str, dict[str, Any]]] = {
    "tumbling": {"kept": {**_SO_FAR, "window_start": ms(10), "window_end": ms(20)}},
    "hopping": {"kept": {**_SO_FAR, "slice_start": ms(12)}},
    "panes": {"kept": {**_SO_FAR, "window_start": ms(10), "window_end": ms(20), "due_at": ms(20)}},
    "sliding": {"kept": {**_SO_FAR, "time": ms(12)}},
    "session": {"kept": {**_SO_FAR, "window_start": ms(12), "window_end": ms(17), "due_at": ms(17)}},
    "count": {"kept": {**_SO_FAR, "due_at": None}},
    "overlapping count": {"kept": {**_SO_FAR, "from_message": 0, "to_message": 2}},
    "global": {"kept": {**_SO_FAR, "due_at": None}},
    "deduplicate": {"kept": {"member": "ann", "time": ms(12)}},
    "full join": {"kept.left": {**_VIEW, "time": ms(12)}, "kept.right": {**_VIEW, "time": ms(12)}},
    "join of the latest": {"kept.left": _VIEW, "kept.right": _VIEW},
    "table of versions": {
        "versions": {**_VIEW, "valid_from": ms(12), "deleted": False},
        "kept.held": {**_VIEW, "time": ms(12)},
    },
    "table on disk": {"rows": _VIEW},
    "table in memory": {"rows": {**_VIEW, "put_at": ms(1000)}},
    "low-level task": {
        "kept.seen": {"member": "ann", "shop": 1, "n": 1},
        "kept.__timers": {"axis": "event", "time": ms(17), "name": "1", "key": "ann"},
    },
}


@pytest.mark.parametrize("case", SEEN)
def test_people_see_what_a_step_has_so_far(case: str, tmp_path: Path) -> None:
    stage = Stage(case, 1, tmp_path)
    stage.begin([])
    stage.run([(name, [tuple(_VIEW.values())]) for name in ("views", "others")])
    stage.commit()
    (task,) = stage.tasks
    found = {id_: rows for id_, store in task.stores().items() for rows in store.frames()}
    for id_, row in SEEN[case].items():
        assert found[id_].to_dicts() == [row]
    stage.close()


def test_messages_of_other_tasks_have_not_had_the_same_partners(tmp_path: Path) -> None:
    """Each task numbers the messages of a full join on its own, so numbers of several tasks are equal."""
    everyone: Rows = [(f"member {number}", 0, 10, number) for number in range(8)]
    steps: list[Step] = [("views", [row]) for row in everyone] + [("others", everyone[:4])]
    with ExitStack() as stages:
        moves("full join", tmp_path, (steps, [("watermark", 100)]), (3, 1), stages)
