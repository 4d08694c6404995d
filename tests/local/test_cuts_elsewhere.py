"""A savepoint that is ordered from another machine: containers don't see its folder, and make none of that name."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from in_thread import running

import headrace as hr
from headrace.coordinator.books import CutOrder, CutReport, CutState
from headrace.core.errors import UsageError
from headrace.life.metadata import existing_metadata
from headrace.protocol.record import Cut
from headrace.run.savepoints.taking import Taking, take


def test_tasks_take_no_part_in_it_and_commit_on(tmp_path: Path) -> None:
    home, theirs = tmp_path / "home", tmp_path / "theirs"
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64}, home=home)
    app = hr.App("copies", home=home, checkpoint_interval="50ms")
    app.input("numbers", {"n": pl.Int64}).send_to(app.output("copies"))
    with running(app, home) as run, hr.streams.StreamWriter("numbers", home=home) as writer:
        run.until(lambda: (status := run.status()) is not None and status.state == "running")
        with run.client() as client:
            assert client is not None
            version = client.cut(CutOrder(ask=True)).now_ms + 10_000
            client.cut(CutOrder(cut=Cut(id="c", version=version, folder=str(theirs / "savepoint"))))
            run.until(lambda: dict(client.cut(CutOrder(ask=True)).states) == {"numbers/0": "apart"})
            writer.write([{"n": 1}])
            run.until(lambda: run.numbers() == [1])
            client.cut(CutOrder())
    assert run.errors == []
    assert not theirs.exists()


class Away:
    """A deployment of the app on another machine."""

    def __init__(self, *, scattered: bool = False) -> None:
        self.orders: list[CutOrder] = []
        self.scattered = scattered

    def cut(self, order: CutOrder) -> CutReport:
        self.orders.append(order)
        cut = next((one.cut for one in reversed(self.orders) if not one.ask), None)
        states: dict[str, CutState] = {} if cut is None else {"numbers/0": "apart"}
        id_ = None if cut is None else cut.id
        return CutReport(
            id=id_,
            states=states,
            guarantee="exactly_once",
            now_ms=0,
            interval_ms=50,
            margin_ms=0,
            scattered=self.scattered,
        )


@pytest.mark.parametrize(
    ("scattered", "said"),
    [
        (False, "task numbers/0 runs on a machine, or in"),
        (True, "app 'copies' can't have savepoints on this cluster: they are kept in the home, and its machines share"),
    ],
)
def test_no_savepoint_is_taken_and_no_order_remains(tmp_path: Path, scattered: bool, said: str) -> None:
    home, away = tmp_path / "home", Away(scattered=scattered)
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64}, home=home)
    app = hr.App("copies", home=home, checkpoint_interval="50ms")
    app.input("numbers", {"n": pl.Int64}).send_to(app.output("copies"))
    with running(app, home) as run:
        run.until(lambda: run.status() is not None)
    with existing_metadata(home) as metadata, pytest.raises(UsageError, match=said):
        take(Taking(home, "copies", metadata, [away]), "monday")
    assert away.orders[-1].cut is None
    assert [path.name for path in (home / "savepoints" / "copies").iterdir()] == [".lock"]
