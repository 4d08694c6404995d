"""Sources and sinks of the small contract: what their checks find, and what an app makes of them."""

from __future__ import annotations

import pickle
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from typing_extensions import override

import headrace as hr
from headrace.core.errors import (
    DataError,
    DeclarationError,
    HeadraceError,
    TrimmedOffsetError,
    UnsupportedPositionError,
    UsageError,
    UserFunctionError,
)
from headrace.core.ids import SSP, StreamId
from headrace.kit.contracts import ContractError, check_system, check_target, source_checks
from headrace.systems.base import Edge, Ended, Polled, Rows, polled_to
from headrace.systems.registry import SystemSpec, open_row_system
from headrace.systems.small import Batch, Sink, SinkWriter, Source, SourcePartition
from headrace.systems.small_system import SourceConsumer, small_system

COLUMNS = {"n": pl.Int64(), "who": pl.String()}
WAIT_S = 30.0


class CountingPartition(SourcePartition):
    def __init__(self, source: Counting, position: int) -> None:
        self.source, self.at = source, position

    @override
    def next_batch(self) -> Batch | None:
        self.source.called("next_batch", self.at)
        stop = min(self.at + self.source.batch, self.source.rows)
        rows = [self.source.row(n) for n in range(self.at, stop)]
        self.at = stop
        if not rows and self.source.bounded:
            return None
        return rows

    @override
    def position(self) -> int:
        return self.at

    @override
    def close(self) -> None:
        self.source.called("close", self.at)


@dataclass
class Counting(Source):
    """Rows that count, in partitions ``a`` and ``b``. ``calls`` and ``failing`` stay in this process."""

    rows: int = 10
    batch: int = 3
    calls: list[tuple[str, int]] = field(default_factory=list)
    failing: dict[tuple[str, int], Exception] = field(default_factory=dict)

    bounded = True

    @override
    def partitions(self) -> Sequence[str]:
        return ("a", "b")

    @override
    def open(self, partition: str, position: int) -> SourcePartition:
        self.called("open", position)
        return CountingPartition(self, position)

    def row(self, n: int) -> dict[str, Any]:
        return {"n": n, "who": f"m{n % 3}"}

    def called(self, what: str, position: int) -> None:
        self.calls.append((what, position))
        if (error := self.failing.pop((what, position), None)) is not None:
            raise error


class Endless(Counting):
    bounded = False
    look_every_s = 0.01


# -- check_system ----------------------------------------------------------------------------------


def test_a_good_source_passes_each_check() -> None:
    for check in source_checks():
        check_system(Counting, only=check)
    check_system(Endless)


class Renaming(Counting):
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        Renaming.made += 1
        self.name = f"part-{Renaming.made}"

    @override
    def partitions(self) -> Sequence[str]:
        return (self.name,)


class Forgetting(Counting):
    """Begins anew wherever it is opened."""

    @override
    def open(self, partition: str, position: int) -> SourcePartition:
        return CountingPartition(self, 0)


class Shifted(Counting):
    """Opens one row too late."""

    @override
    def open(self, partition: str, position: int) -> SourcePartition:
        return CountingPartition(self, position + bool(position))


class LosingPartition(CountingPartition):
    @override
    def position(self) -> int:
        return self.at + self.at // 3


class Losing(Counting):
    """Counts more than its rows."""

    @override
    def open(self, partition: str, position: int) -> SourcePartition:
        return LosingPartition(self, position)


class Sharing(Counting):
    """All who read a partition move one cursor."""

    cursors: ClassVar[dict[str, CountingPartition]] = {}

    @override
    def open(self, partition: str, position: int) -> SourcePartition:
        cursor = self.cursors.setdefault(partition, CountingPartition(self, position))
        cursor.at = position
        return cursor


class NeverEnding(Counting):
    @override
    def open(self, partition: str, position: int) -> SourcePartition:
        return CountingPartition(Endless(self.rows), position)


class EndingEarly(Counting):
    @override
    def end(self, partition: str) -> int | None:
        return self.rows - 1


@pytest.mark.parametrize(
    ("make", "check"),
    [
        (Renaming, "describes_itself"),
        (lambda: Counting(failing={("x", 0): lambda: None}), "describes_itself"),  # type: ignore[dict-item]
        (lambda: Counting(rows=2), "has_rows"),
        (Losing, "has_rows"),
        (Forgetting, "the_same_again"),
        (Shifted, "the_same_again"),
        (Sharing, "two_at_once"),
        (NeverEnding, "has_rows"),
        (EndingEarly, "the_end"),
    ],
)
def test_a_check_finds_what_is_wrong(make: Callable[[], Source], check: str) -> None:
    with pytest.raises(ContractError, match=f"^{check}: "):
        check_system(make, wait_s=0.1)


# -- a consumer ------------------------------------------------------------------------------------


def ssp(partition: int = 0) -> SSP:
    return SSP(StreamId("counting", "rows"), partition)


def taken(consumer: SourceConsumer, enough: Callable[[list[Polled]], bool]) -> list[Polled]:
    """Poll until there is enough."""
    found: list[Polled] = []
    until = time.monotonic() + WAIT_S
    while not enough(found):
        assert time.monotonic() < until, found
        consumer.arriving(ssp(), 1 << 40, 100)
        found += consumer.poll([ssp()])
    return found


def numbers(found: Sequence[Polled]) -> list[int]:
    return [n for one in found if isinstance(one, Rows) for n in one.frame["n"]]


def ended(found: list[Polled]) -> bool:
    return any(isinstance(one, Ended) for one in found)


def failed(source: Source, error: type[HeadraceError]) -> str:
    with closing(SourceConsumer(source, COLUMNS)) as consumer:
        consumer.register(ssp(), Edge.OLDEST)
        with pytest.raises(error) as raised:
            taken(consumer, ended)
    return raised.value.message


def test_rows_come_in_order_with_their_offsets_and_then_the_end() -> None:
    source = Counting()
    with closing(SourceConsumer(source, COLUMNS)) as consumer:
        consumer.register(ssp(), 4)
        assert consumer.position(ssp()) == 4
        found = taken(consumer, ended)
        assert numbers(found) == [4, 5, 6, 7, 8, 9]
        assert [(one.offset, one.next) for one in found if isinstance(one, Rows)] == [(4, 7), (7, 10)]
        assert found[-1] == Ended(ssp(), 10)
        assert (consumer.position(ssp()), consumer.lag(ssp()), consumer.lag(ssp(), 4)) == (10, 0, 6)
        assert consumer.poll() == []
        consumer.register(ssp(), 8)  # a second call seeks
        assert numbers(taken(consumer, ended)) == [8, 9]
    assert [what for what, _ in source.calls].count("close") == 2


def test_a_source_is_read_a_little_ahead_and_no_further() -> None:
    source = Counting(rows=100)
    with closing(SourceConsumer(source, COLUMNS)) as consumer:
        consumer.register(ssp(), 0)
        found = taken(consumer, lambda found: len(found) >= 2)
        assert len([what for what, _ in source.calls if what == "next_batch"]) <= len(found) + 2


def test_what_was_there_is_waited_for() -> None:
    with closing(SourceConsumer(Endless(), COLUMNS)) as consumer:
        consumer.register(ssp(), 0)
        assert numbers(list(polled_to(consumer, ssp(), 1 << 40, 1 << 20))) == list(range(10))


def test_an_error_that_may_pass_opens_the_partition_again() -> None:
    source = Counting(failing={("open", 0): TimeoutError("no"), ("next_batch", 6): ConnectionError("gone")})
    with closing(SourceConsumer(source, COLUMNS)) as consumer:
        consumer.register(ssp(), 0)
        assert numbers(taken(consumer, ended)) == list(range(10))
    assert [at for what, at in source.calls if what == "open"] == [0, 0, 6]


def test_any_other_error_fails_the_task_and_says_where() -> None:
    said = failed(Counting(failing={("next_batch", 3): ValueError("bad page")}), UserFunctionError)
    assert said == "counting.rows[0]: Counting.next_batch: ValueError: bad page"
    assert "position from 0 to 4" in failed(Losing(), DataError)


def test_positions_with_gaps_need_those_of_the_rows() -> None:
    class Even(CountingPartition):
        @override
        def next_batch(self) -> Batch | None:
            found = [n for n in (0, 2, 4, 6) if n >= self.at][:2]
            self.given = found
            self.at = found[-1] + 1 if found else self.at
            return pl.DataFrame({"n": found, "who": ["x"] * len(found)}, COLUMNS) if found else None

        @override
        def row_positions(self) -> Sequence[int]:
            return self.given

    class Evens(Counting):
        @override
        def open(self, partition: str, position: int) -> SourcePartition:
            return Even(self, position)

    check_system(Evens)
    with closing(SourceConsumer(Evens(), COLUMNS)) as consumer:
        consumer.register(ssp(), 1)
        found = taken(consumer, ended)
    rows = [one for one in found if isinstance(one, Rows)]
    assert [(one.offset, list(one.offsets if one.offsets is not None else ()), one.next) for one in rows] == [
        (1, [2, 4], 5),
        (5, [6], 7),
    ]


def test_edges_and_times_need_additions() -> None:
    doubt = pytest.raises(UnsupportedPositionError, match="doesn't say where its partitions end")
    with closing(SourceConsumer(Counting(), COLUMNS)) as consumer, doubt:
        consumer.register(ssp(), Edge.UPCOMING)
    admin = small_system(Counting()).admin()
    with pytest.raises(UnsupportedPositionError, match="doesn't know when rows were added"):
        admin.offset_at(ssp(), 0)
    admin.check_offset(ssp(), 1_000)  # nobody knows


class Kept(Counting):
    """Keeps rows from 4 on, and knows where they end."""

    @override
    def begin(self, partition: str) -> int:
        return 4

    @override
    def end(self, partition: str) -> int | None:
        return self.rows


def test_a_source_that_knows_its_edges_checks_positions() -> None:
    check_system(Kept)
    with closing(SourceConsumer(Kept(), COLUMNS)) as consumer:
        consumer.register(ssp(), Edge.UPCOMING)
        assert (consumer.position(ssp()), consumer.lag(ssp()), consumer.lag(ssp(), 4)) == (10, 0, 6)
        consumer.register(ssp(), Edge.OLDEST)
        assert consumer.position(ssp()) == 4
        with pytest.raises(TrimmedOffsetError):
            consumer.register(ssp(), 3)
        with pytest.raises(UsageError, match="after the end"):
            consumer.register(ssp(), 11)
    with pytest.raises(UsageError, match="after the end"):
        small_system(Kept()).admin().check_offset(ssp(), 11)


def test_a_spec_goes_to_another_process_as_a_pickle() -> None:
    spec = pickle.loads(pickle.dumps(Counting(rows=3).system("rows")))
    assert (spec.name, spec.kind) == ("counting-rows", "small")
    consumer = open_row_system(spec).consumer(COLUMNS)
    with closing(consumer):
        consumer.register(ssp(), Edge.OLDEST)
        assert isinstance(consumer, SourceConsumer)
        assert numbers(taken(consumer, ended)) == [0, 1, 2]


# -- sinks -----------------------------------------------------------------------------------------


class TableWriter(SinkWriter):
    def __init__(self, sink: Table, writer: str) -> None:
        self.sink, self.writer = sink, writer
        self.db = sqlite3.connect(sink.file, timeout=30, isolation_level=None)
        self.rows: list[tuple[Any, ...]] = []

    @override
    def position(self) -> int:
        found = self.db.execute("SELECT version FROM positions WHERE writer = ?", [self.writer]).fetchone()
        return int(found[0]) if found else -1

    @override
    def write(self, rows: pl.DataFrame) -> None:
        self.rows += rows.rows()

    @override
    def commit(self, version: int) -> None:
        if self.sink.failures:
            raise self.sink.failures.pop()
        rows, self.rows = self.rows, []
        with self.db:
            self.db.execute("BEGIN IMMEDIATE")
            if not self.sink.checks or self.position() < version:
                places = ", ".join("?" * len(rows[0]))
                self.db.executemany(f"INSERT INTO results VALUES ({places})", rows)
                self.db.execute("REPLACE INTO positions VALUES (?, ?)", [self.writer, version])

    @override
    def close(self) -> None:
        self.db.close()


@dataclass
class Table(Sink):
    file: Path
    checks: bool = True
    failures: list[Exception] = field(default_factory=list)

    retry_on = (OSError, sqlite3.OperationalError)

    @override
    def open(self, writer: str) -> SinkWriter:
        return TableWriter(self, writer)

    @override
    def create(self, columns: Mapping[str, pl.DataType] | None) -> None:
        with closing(sqlite3.connect(self.file)) as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS results ({', '.join(columns or {})})")
            db.execute("CREATE TABLE IF NOT EXISTS positions (writer TEXT PRIMARY KEY, version INTEGER)")

    def all(self, schema: Mapping[str, pl.DataType | type[pl.DataType]]) -> pl.DataFrame:
        with closing(sqlite3.connect(self.file)) as db:
            return pl.DataFrame(db.execute("SELECT * FROM results").fetchall(), schema, orient="row")


class Careless(Table):
    """Adds what arrives, whatever was there."""

    keeps_positions: ClassVar[bool] = False


WRITTEN = {"writer": pl.String, "version": pl.Int64, "n": pl.Int64}


def test_a_good_sink_passes_each_check(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.db")
    check_target(lambda: table, lambda: table.all(WRITTEN))


def test_the_checks_find_a_sink_that_forgets_to_look_in_its_transaction(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.db", checks=False)
    with pytest.raises(ContractError, match=r"^two_at_once: "):
        for _ in range(20):  # it is a race
            check_target(lambda: table, lambda: table.all(WRITTEN), only="two_at_once")


def test_a_sink_that_keeps_no_positions_is_checked_for_what_it_promises(tmp_path: Path) -> None:
    table = Careless(tmp_path / "t.db", checks=False)
    check_target(lambda: table, lambda: table.all(WRITTEN))
    assert table.system("out").may_repeat == "Careless keeps no positions"


# -- apps ------------------------------------------------------------------------------------------


def declared(source: Source, sink: Sink, home: Path) -> hr.App:
    app = hr.App("small", home=home, checkpoint_interval="100ms")
    rows = app.input("rows", COLUMNS, system=source, on_error="skip")
    rows.filter(pl.col("n") % 2 == 0).send_to(app.output("even", system=sink))
    return app


def test_each_row_counts_once_though_source_sink_and_app_fail(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.db", failures=[ConnectionError("away")])
    source = Counting(rows=50, failing={("next_batch", 27): ValueError("broken"), ("next_batch", 9): OSError("away")})
    with pytest.raises(HeadraceError, match=r"Counting\.next_batch: ValueError: broken"):
        declared(source, table, tmp_path / "home").run(local=True, progress=False)
    declared(source, table, tmp_path / "home").run(local=True, progress=False)
    assert sorted(table.all(COLUMNS)["n"]) == sorted(2 * list(range(0, 50, 2)))  # of both partitions


class Mixed(Counting):
    @override
    def row(self, n: int) -> dict[str, Any]:
        return {"n": "four" if n == 4 else n, "more": 1}


def test_a_row_that_cannot_be_read_is_left_to_the_input(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.db")
    declared(Mixed(), table, tmp_path / "home").run(local=True, progress=False)
    assert sorted(table.all(COLUMNS)["n"]) == [0, 0, 2, 2, 6, 6, 8, 8]


def test_a_test_feeds_the_input_itself() -> None:
    source = Counting()
    app = hr.App("small")
    app.input("rows", COLUMNS, system=source).send_to(app.output("out"))
    with app.test() as t:
        t.feed("rows", [{"n": 1, "who": "ann"}])
        assert t.read("out").rows() == [(1, "ann")]
    assert source.calls == []


def test_sources_are_inputs_and_sinks_are_outputs(tmp_path: Path) -> None:
    app = hr.App("small")
    with pytest.raises(DeclarationError, match="Counting is a source"):
        app.output("out", system=Counting())
    with pytest.raises(DeclarationError, match="Table is a sink"):
        app.input("in", COLUMNS, system=Table(tmp_path / "t.db"))
    with pytest.raises(UsageError, match="neither a Source nor a Sink"):
        small_system(3)  # type: ignore[arg-type]
    assert isinstance(Counting().system("x"), SystemSpec)
