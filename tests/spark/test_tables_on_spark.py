"""Queries of tables of apps that run on Spark: under load, while a container dies, on separate executors."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import polars as pl
import pytest
from pyspark import SparkContext

import headrace as hr
from chaos.deployment import Deployment, is_running, until
from headrace.app import App
from headrace.coordinator.messages import AppStatus
from headrace.core.errors import HeadraceError, UnavailableError
from headrace.operate.cli.loader import load_app
from running_apps import find_all

COLUMNS = {"member": pl.Int64, "round": pl.Int64}
MEMBERS = 500
PATIENCE_S = 300.0

SOURCE = """
import sys
import polars as pl
import headrace as hr

COLUMNS = {{"member": pl.Int64, "round": pl.Int64}}
app = hr.App("rounds", home={home!r}, checkpoint_interval="300ms")
table = app.table("last", key="member", schema=COLUMNS)
app.input("rounds-in", COLUMNS).partition_by("member", id="by-member", partitions=2).send_to(table)

if __name__ == "__main__":
    app.run(master=sys.argv[1], progress=False)
"""


class Rounds:
    """Each round writes every member once. Messages of one member arrive in the order of rounds."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.file = folder / "rounds.py"
        self.file.write_text(SOURCE.format(home=str(self.home)))
        hr.streams.create_stream("rounds-in", 2, COLUMNS, home=self.home)
        self.writer = hr.streams.StreamWriter("rounds-in", key="member", home=self.home)
        self.round = 0

    def feed(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.round += 1
            self.writer.write(pl.DataFrame({"member": range(MEMBERS)}).with_columns(round=pl.lit(self.round)))

    def status(self) -> AppStatus:
        (address,) = find_all(self.home, "rounds")
        client = address.client()
        try:
            return client.status()
        finally:
            client.close()

    def running(self) -> bool:
        return bool(find_all(self.home, "rounds")) and is_running(self.status())

    def read(self, reader: hr.tables.TableReader) -> pl.DataFrame | None:
        """All rows; None while a task can't answer."""
        try:
            return reader.scan(limit=None)
        except HeadraceError as error:
            if not error.retry:
                raise
            return None

    def until_committed(self, reader: hr.tables.TableReader) -> pl.DataFrame:
        """Wait until every member is in the last round. Returns the rows."""
        found: list[pl.DataFrame] = []

        def there() -> bool:
            rows = self.read(reader)
            if rows is None or rows.height < MEMBERS or rows.get_column("round").min() != self.round:
                return False
            found.append(rows)
            return True

        until(there, f"round {self.round} is committed", PATIENCE_S)
        return found[0]


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path)


@pytest.fixture
def in_session(rounds: Rounds, monkeypatch: pytest.MonkeyPatch, spark_context: SparkContext) -> Rounds:
    """Run the app in the session that all tests share, until the test ends."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    return rounds


class Running:
    """The app in a thread; it ends when it is drained or its input is sealed."""

    def __init__(self, rounds: Rounds, *, drain: bool = False) -> None:
        self._rounds = rounds
        self._drain = drain
        self._errors: list[BaseException] = []
        app = load_app(rounds.file)
        assert isinstance(app, App)
        self._app = app
        self._thread = threading.Thread(target=self._run, name="app")

    def _run(self) -> None:
        try:
            self._app.run(progress=False)
        except BaseException as error:
            self._errors.append(error)

    def __enter__(self) -> None:
        self._thread.start()
        try:
            until(lambda: bool(self._errors) or self._rounds.running(), "every task runs", PATIENCE_S)
        except BaseException:
            self._end()
            raise

    def __exit__(self, *_: object) -> None:
        self._end()
        assert self._errors == []
        assert not self._thread.is_alive()

    def _end(self) -> None:
        if not self._drain:
            self._rounds.writer.seal()
        for address in find_all(self._rounds.home, "rounds") if self._drain else ():
            client = address.client()
            client.drain()
            client.close()
        self._thread.join(PATIENCE_S)


def test_a_table_is_read_at_speed_and_over_the_death_of_a_container(in_session: Rounds) -> None:
    rounds = in_session
    with Running(rounds), hr.tables.open_table("rounds", "last", home=rounds.home, timeout="30s") as reader:
        rounds.feed(20)
        rows = rounds.until_committed(reader)
        assert rows.sort("member").rows() == [(member, rounds.round) for member in range(MEMBERS)]
        assert rows.get_column("member").n_unique() == MEMBERS
        row = reader.get(7)
        assert row == {"member": 7, "round": rounds.round}
        assert len(reader.versions) == 1
        assert reader.get(-1) is None

        victim = rounds.status().containers[0].pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        rounds.feed(5)
        rows = rounds.until_committed(reader)
        assert rows.sort("member").rows() == [(member, rounds.round) for member in range(MEMBERS)]
        assert rounds.status().containers[0].pid != victim
        assert rounds.status().queries.refused == 0


def test_what_is_read_never_goes_back_and_is_whole_within_a_task(in_session: Rounds) -> None:
    """A task gets a round as one batch, so an answer with members in different rounds would be between two commits."""
    rounds = in_session
    with Running(rounds), hr.tables.open_table("rounds", "last", home=rounds.home, timeout="30s") as reader:
        seen: dict[str, list[tuple[int, int]]] = {}

        def look() -> bool:
            rounds.feed()
            for number in range(reader.partitions):
                rows = reader.scan(limit=MEMBERS, partition=number)
                if not rows.height:
                    continue
                ((task, version),) = reader.versions.items()
                (round_,) = rows.get_column("round").unique()
                seen.setdefault(task, []).append((version or 0, round_))
            return len(seen) == 2 and all(len({version for version, _ in looks}) >= 3 for looks in seen.values())

        until(look, "three versions of each task have been seen", PATIENCE_S)
        rounds.until_committed(reader)
    for looks in seen.values():
        assert looks == sorted(looks)
        assert [round_ for _, round_ in looks] == sorted(round_ for _, round_ in looks)


def test_uncommitted_rows_do_not_show(in_session: Rounds) -> None:
    rounds = in_session
    rounds.file.write_text(rounds.file.read_text().replace("300ms", "36500d"))  # only a drain commits
    with Running(rounds, drain=True):
        rounds.feed()
        until(lambda: rows_met(rounds) == MEMBERS, "it is processed", PATIENCE_S)
    with Running(rounds, drain=True), hr.tables.open_table("rounds", "last", home=rounds.home, timeout="30s") as reader:
        rounds.until_committed(reader)
        before = dict(reader.versions)
        rounds.feed()
        until(lambda: rows_met(rounds) == MEMBERS, "it is processed", PATIENCE_S)
        assert reader.scan(limit=None).get_column("round").unique().to_list() == [1]
        assert reader.versions == before
    with Running(rounds), hr.tables.open_table("rounds", "last", home=rounds.home, timeout="30s") as reader:
        assert rounds.until_committed(reader).get_column("round").unique().to_list() == [2]
        assert all((reader.versions[task] or 0) > (version or 0) for task, version in before.items())


def rows_met(rounds: Rounds) -> int:
    """How many messages the tasks of the table have processed in this run, committed or not."""
    return sum(task.rows_in for task in rounds.status().tasks if task.name.startswith("by-member/"))


@pytest.mark.soak  # only the master differs from the tests above
def test_on_executors_of_their_own(rounds: Rounds, tmp_path: Path) -> None:
    command = [sys.executable, str(rounds.file), "local-cluster[2,1,1024]"]
    with Deployment(command, rounds.home, "rounds", tmp_path / "run") as run:
        run.wait_running()
        rounds.feed(3)
        with hr.tables.open_table("rounds", "last", home=rounds.home, timeout="30s") as reader:
            assert rounds.until_committed(reader).height == MEMBERS
            assert reader.get(3) == {"member": 3, "round": 3}
        rounds.writer.seal()
        assert run.wait(PATIENCE_S) == 0, run.errors()
        with pytest.raises(UnavailableError, match="app 'rounds' isn't running"):
            hr.tables.open_table("rounds", "last", home=rounds.home)
