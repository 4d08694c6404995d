"""Tables read beside a running task: committed rows alone, each answer of one commit, bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from driven_app import INTERVAL_MS, STEP_MS, DrivenApp

import headrace as hr
from headrace.api.specs import TableStorage
from headrace.core.errors import DataError, InfrastructureError, UnavailableError, UsageError
from headrace.stores.encoding import KeyEncoding
from headrace.task import tables as committed_rows
from headrace.task.host.task_host import TaskHost
from headrace.task.tables import CommittedTables, Page

COLUMNS = {"article": pl.String, "size": pl.Int64, "euros": pl.Decimal(10, 2)}
MUCH = 1 << 20
KEYS = KeyEncoding({"article": pl.String(), "size": pl.Int64()})


def prices_app(home: Path, ttl: str | None = None, storage: TableStorage = "disk") -> hr.App:
    app = hr.App("prices", home=str(home), checkpoint_interval=f"{INTERVAL_MS}ms")
    table = app.table("prices", key=("article", "size"), schema=COLUMNS, ttl=ttl, storage=storage)
    app.input("changes", COLUMNS).send_to(table)
    return app


@pytest.fixture(params=["disk", "memory"])
def storage(request: pytest.FixtureRequest) -> TableStorage:
    """Where the rows are: it makes no difference to whoever asks."""
    stored: TableStorage = request.param
    return stored


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[hr.streams.StreamWriter]:
    hr.streams.create_stream("changes", 1, COLUMNS, home=tmp_path)
    with hr.streams.StreamWriter("changes", home=tmp_path) as writer:
        yield writer


def priced(*rows: tuple[str, int, str]) -> pl.DataFrame:
    return pl.DataFrame(
        {"article": [r[0] for r in rows], "size": [r[1] for r in rows], "euros": [r[2] for r in rows]}
    ).cast({"euros": pl.Decimal(10, 2)})


def keys(*values: tuple[str, int]) -> list[bytes]:
    return KEYS.encode(pl.DataFrame(values, schema={"article": pl.String, "size": pl.Int64}, orient="row"))


def tables_of(host: TaskHost, now_ms: int = 0) -> CommittedTables:
    return CommittedTables(host.state, host.scope.queryable, lambda: now_ms)


def scan(tables: CommittedTables, low: bytes = b"", high: bytes = b"", rows: int = 100, size: int = MUCH) -> Page:
    return tables.scan("prices", low, high, rows, size)


def test_rows_show_when_they_are_committed_and_not_before(
    tmp_path: Path, changes: hr.streams.StreamWriter, storage: TableStorage
) -> None:
    with DrivenApp(prices_app(tmp_path, storage=storage)) as app:
        app.start()
        (host,) = app.hosts
        tables = tables_of(host)
        app.run(2 * INTERVAL_MS + STEP_MS)  # just behind a commit
        before = scan(tables)
        assert before.rows.rows() == []
        assert before.rows.schema == COLUMNS
        changes.write(priced(("lamp", 1, "2.50"), ("desk", 2, "90.00")))
        app.until(lambda: host.metrics.rows_in == 2)
        assert host.task.chain.tables.sizes() == {"prices": 2}
        assert scan(tables).rows.rows() == []
        assert tables.get("prices", keys(("lamp", 1)), MUCH).rows.rows() == []
        version = host.machine.version
        app.until(lambda: host.machine.version > version)
        after = scan(tables)
        assert after.rows.equals(priced(("desk", 2, "90.00"), ("lamp", 1, "2.50")))
        assert after.version == host.machine.version
        found = tables.get("prices", keys(("lamp", 1), ("sofa", 1)), MUCH)
        assert found.rows.equals(priced(("lamp", 1, "2.50")))
        assert (found.version, found.more) == (host.machine.version, False)


def test_bounds_and_pages(tmp_path: Path, changes: hr.streams.StreamWriter, storage: TableStorage) -> None:
    with DrivenApp(prices_app(tmp_path, storage=storage)) as app:
        app.start()
        rows = [(f"a{n:02}", n, "1.00") for n in range(10)]
        changes.write(priced(*rows))
        app.run(3 * INTERVAL_MS)
        tables = tables_of(app.hosts[0])

        def articles(page: Page) -> list[Any]:
            return page.rows.get_column("article").to_list()

        page = scan(tables, rows=3)
        assert (articles(page), page.more, page.last) == (["a00", "a01", "a02"], True, keys(("a02", 2))[0])
        rest = scan(tables, low=page.last + b"\x00")
        assert (articles(rest), rest.more) == ([f"a{n:02}" for n in range(3, 10)], False)
        low, high = keys(("a04", 4), ("a06", 6))
        assert articles(scan(tables, low, high)) == ["a04", "a05"]
        assert articles(scan(tables, high, low)) == []
        small = scan(tables, size=1)
        assert (articles(small), small.more) == (["a00"], True)
        assert not scan(tables, rows=10).more
        one = tables.get("prices", keys(("a05", 5), ("a06", 6)), 1)
        assert (articles(one), one.more) == (["a05"], True)


def test_only_keys_of_rows_can_be_asked_for(tmp_path: Path, changes: hr.streams.StreamWriter) -> None:
    with DrivenApp(prices_app(tmp_path)) as app:
        app.start()
        changes.write(priced(("lamp", 1, "2.50")))
        app.run(3 * INTERVAL_MS)
        tables = tables_of(app.hosts[0])
        for what in (b"", b"\xff"):  # the store's own entries
            with pytest.raises(UsageError, match="isn't a key of table 'prices'"):
                tables.get("prices", [what], MUCH)
        assert scan(tables, b"\x01", b"\xff\xff").rows.height == 1
        with pytest.raises(UsageError, match="this app has no table 'costs'"):
            tables.get("costs", [], MUCH)


def test_a_row_that_is_too_large_is_an_error(
    tmp_path: Path, changes: hr.streams.StreamWriter, storage: TableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_rows, "ROW_BYTES_MAX", 100)
    with DrivenApp(prices_app(tmp_path, storage=storage)) as app:
        app.start()
        changes.write(priced(("x" * 200, 1, "2.50")))
        app.run(3 * INTERVAL_MS)
        with pytest.raises(DataError, match="too large"):
            scan(tables_of(app.hosts[0]))


def test_what_has_expired_is_not_there(tmp_path: Path, changes: hr.streams.StreamWriter, storage: TableStorage) -> None:
    with DrivenApp(prices_app(tmp_path, "1m", storage)) as app:
        app.start()
        changes.write(priced(("lamp", 1, "2.50")))
        app.run(3 * INTERVAL_MS)
        (host,) = app.hosts
        now = app.clock.now_ms()
        assert scan(tables_of(host, now)).rows.height == 1
        assert scan(tables_of(host, now + 60_000)).rows.height == 0
        assert tables_of(host, now + 60_000).get("prices", keys(("lamp", 1)), MUCH).rows.height == 0


def test_a_task_that_restores_or_has_gone_says_so(
    tmp_path: Path, changes: hr.streams.StreamWriter, storage: TableStorage
) -> None:
    with DrivenApp(prices_app(tmp_path, storage=storage)) as app:
        container = app.start()
        changes.write(priced(("lamp", 1, "2.50")))
        app.run(3 * INTERVAL_MS)
        (host,) = app.hosts
        tables = tables_of(host)
        assert scan(tables).rows.height == 1
        host.state.begin(host.attempt.stores())
        with pytest.raises(UnavailableError, match="being restored"):
            scan(tables)
        host.state.begun()
        app.kill(container)
        with pytest.raises(UnavailableError):
            scan(tables)
        app.start()
        assert scan(tables_of(app.hosts[0])).rows.height == 1


def test_state_in_memory_cant_be_read(tmp_path: Path) -> None:
    app = prices_app(tmp_path)
    with app.test() as t:
        host = t._container.hosts[0]
        with pytest.raises(InfrastructureError, match="in memory"):
            scan(tables_of(host))


def test_a_reader_beside_the_run_loop_sees_whole_commits(
    tmp_path: Path, changes: hr.streams.StreamWriter, storage: TableStorage
) -> None:
    """Each batch changes all rows to one number: a mixture would be a commit seen in parts."""
    seen: list[tuple[int | None, tuple[Any, ...]]] = []
    failed: list[BaseException] = []
    with DrivenApp(prices_app(tmp_path, storage=storage)) as app:
        app.start()
        tables = tables_of(app.hosts[0])
        over, looked = threading.Event(), threading.Event()

        def read() -> None:
            try:
                while not over.is_set():
                    page = scan(tables)
                    seen.append((page.version, tuple(page.rows.get_column("euros").unique())))
                    looked.set()
            except BaseException as error:
                failed.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(30):
                changes.write(priced(*((f"a{n}", n, f"{number}.00") for n in range(50))))
                app.run(INTERVAL_MS)
                looked.clear()
                assert looked.wait(60), failed
        finally:
            over.set()
            reader.join()
    assert failed == []
    versions = [version for version, _ in seen if version is not None]
    assert versions == sorted(versions)
    assert len({prices for _, prices in seen}) > 5
    by_version: dict[int | None, set[Any]] = {}
    for version, prices in seen:
        assert len(prices) <= 1
        by_version.setdefault(version, set()).add(prices)
    assert all(len(prices) == 1 for prices in by_version.values())


def test_of_a_table_with_versions_the_newest_shows_unless_it_is_gone(tmp_path: Path) -> None:
    columns = {"article": pl.String, "euros": pl.Float64, "ts": pl.Int64, "gone": pl.Boolean}
    hr.streams.create_stream("changes", 1, columns, home=tmp_path)
    declared = hr.App("prices", home=str(tmp_path), checkpoint_interval=f"{INTERVAL_MS}ms")
    changes = declared.input("changes", columns, event_time="ts")
    table = declared.table("prices", key="article", versions="1d", deleted="gone")
    changes.send_to(table)
    with hr.streams.StreamWriter("changes", home=tmp_path) as writer, DrivenApp(declared) as app:
        app.start()
        rows = [("desk", 1.0, 10, False), ("lamp", 2.0, 10, False), ("lamp", 3.0, 20, False), ("desk", None, 20, True)]
        writer.write(pl.DataFrame(rows, schema=columns, orient="row"))
        app.run(3 * INTERVAL_MS)
        page = scan(tables_of(app.hosts[0]))
        assert page.rows.select("article", "euros").rows() == [("lamp", 3.0)]
        assert page.rows.columns == ["article", "euros", "ts"]
        first = scan(tables_of(app.hosts[0]), rows=1)  # which is gone; the next page begins behind it all the same
        assert (first.rows.height, first.more) == (0, True)
        assert scan(tables_of(app.hosts[0]), low=first.last + b"\x00").rows.height == 1


def test_of_many_rows_in_memory_pages_are_everything_once(tmp_path: Path, changes: hr.streams.StreamWriter) -> None:
    many = 70_000  # more than a piece has
    with DrivenApp(prices_app(tmp_path, storage="memory")) as app:
        app.start()
        numbers = pl.int_range(many, eager=True)
        rows = pl.DataFrame({"article": numbers.cast(pl.String), "size": numbers})
        changes.write(rows.with_columns(euros=pl.lit("1.00").cast(pl.Decimal(10, 2))))
        app.run(3 * INTERVAL_MS)
        changes.write(priced(("7", 7, "2.00")))
        app.run(3 * INTERVAL_MS)
        tables = tables_of(app.hosts[0])
        found = []
        page = scan(tables, rows=10_000)
        found.append(page.rows)
        while page.more:
            page = scan(tables, page.last + b"\x00", rows=10_000)
            found.append(page.rows)
        together = pl.concat(found)
        assert together.height == many
        assert together.get_column("article").to_list() == sorted(map(str, range(many)))
        assert [str(price) for price in together.filter(article="7")["euros"]] == ["2.00"]
        assert tables.get("prices", keys(("69999", 69_999), ("7", 7), ("x", 1)), MUCH).rows["size"].to_list() == [
            *(69_999, 7)
        ]
