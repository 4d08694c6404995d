from __future__ import annotations

import datetime as dt
import os
import threading
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from files_harness import read, rows_of, ssp, table

import headrace as hr
from headrace.core.errors import DataError, DeclarationError, StorageError, UsageError
from headrace.systems.files.system import FilesSystem

WRITER = "app/stage/0/out"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_what_is_published_is_read(tmp_path: Path, format: str) -> None:
    system = FilesSystem(str(tmp_path / "out"), format=format)
    admin = system.admin()
    assert admin.list() == []
    info = admin.create("out", 2, {"member": pl.String(), "ts": pl.Int64()})
    assert info == admin.create("out", 2, {"member": pl.String(), "ts": pl.Int64()})
    target = system.target("out")
    target.publish(WRITER, 3, [table(10), table(20)[10:]])
    target.publish(WRITER, 12, [table(5)])
    target.close()
    assert names(tmp_path / "out") == [f"app~stage~0~out~{version:019d}.{format}" for version in (3, 12)]
    admin.seal("out")
    assert (tmp_path / "out" / "_SUCCESS").exists()
    got = [row for n in range(2) for row in rows_of(read(FilesSystem(str(tmp_path / "out")), partition=n)[0])]
    assert got == table(20).rows() + table(5).rows()


def test_no_half_file_has_a_final_name(tmp_path: Path) -> None:
    """A reader that polls all the time never finds a file that it can't read as a whole."""
    system = FilesSystem(str(tmp_path), format="parquet")
    done = threading.Event()
    seen: dict[str, int] = {}

    def look() -> None:
        while not done.is_set():
            for path in tmp_path.glob("*.parquet"):
                seen[path.name] = pl.read_parquet(path).height

    looker = threading.Thread(target=look)
    looker.start()
    try:
        target = system.target("out")
        for version in range(20):
            target.publish(WRITER, version, [table(20_000)])
    finally:
        done.set()
        looker.join()
    assert set(seen.values()) <= {20_000}
    assert not list(tmp_path.rglob("*.making"))


@pytest.mark.parametrize(("call", "there"), [(1, 0), (2, 0), (3, 1)])
def test_a_publication_that_failed_left_nothing_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, there: int
) -> None:
    """The disk is full at the data file, or at the folder before or after the file has its name."""
    target = FilesSystem(str(tmp_path / "out"), format="jsonl").target("out")
    calls = iter(range(1, 10))
    sync = os.fsync

    def full(fd: int) -> None:
        if next(calls) == call:
            raise OSError(28, "No space left on device")
        sync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left") as caught:
            target.publish(WRITER, 1, [table(3)])
    assert caught.value.retry
    assert len(names(tmp_path / "out")) == there
    assert len(list((tmp_path / "out").glob(".*.making"))) == 0
    target.publish(WRITER, 1, [table(3)])
    assert len(names(tmp_path / "out")) == 1
    assert target.position(WRITER) == 1


def test_the_position_is_found_when_its_note_is_lost(tmp_path: Path) -> None:
    system = FilesSystem(str(tmp_path), format="csv")
    system.target("out").publish(WRITER, 41, [table(3)])
    system.target("out").publish(WRITER + "-2", 99, [table(3)])
    note = tmp_path / ".positions" / "app~stage~0~out"
    assert note.read_text() == "41"
    note.write_text("")
    assert system.target("out").position(WRITER) == 41
    note.unlink()
    assert system.target("out").position(WRITER) == 41


def test_files_that_were_taken_away_do_not_come_back(tmp_path: Path) -> None:
    system = FilesSystem(str(tmp_path))
    system.target("out").publish(WRITER, 7, [table(3)])
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    system.target("out").publish(WRITER, 7, [table(3)])
    assert names(tmp_path) == []


def test_old_drafts_are_removed_and_new_ones_are_not(tmp_path: Path) -> None:
    """The writer of the old draft is dead. The new one may be a living copy's. The last one may still be needed."""
    old, new, other = (tmp_path / f".{who}~{7:019d}.parquet.1a2b3c4d.making" for who in ("a~b~0~o", "a~b~0~o", "x"))
    new = new.with_name(new.name.replace("1a2b", "5e6f"))
    ahead = old.with_name(old.name.replace("07.parquet", "08.parquet"))
    for draft in (old, new, other, ahead):
        draft.touch()
    for draft in (old, other, ahead):
        os.utime(draft, (0, 0))
    assert FilesSystem(str(tmp_path)).target("out").position("a/b/0/o") == -1
    assert old.exists()
    (tmp_path / ".positions").mkdir()
    (tmp_path / ".positions" / "a~b~0~o").write_text("7")
    assert FilesSystem(str(tmp_path)).target("out").position("a/b/0/o") == 7
    assert sorted(tmp_path.glob("*.making")) == sorted([new, other, ahead])


def test_long_names_stay_apart(tmp_path: Path) -> None:
    target = FilesSystem(str(tmp_path)).target("out")
    writers = [f"{'a' * 128}/{'s' * 128}/0/{'o' * 127}{end}" for end in "xy"]
    for writer in writers:
        target.publish(writer, 1, [table(1)])
    assert len(names(tmp_path)) == 2
    assert [target.position(writer) for writer in writers] == [1, 1]


TYPES: dict[str, tuple[pl.DataType, object]] = {
    "raw": (pl.Binary(), b"\x00\xff"),
    "text": (pl.String(), 'a,\n"b"'),
    "moment": (pl.Datetime("us"), dt.datetime(2024, 1, 1, 1, 2, 3, 4)),
    "zoned": (pl.Datetime("ms", "UTC"), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
    "clock": (pl.Time(), dt.time(1, 2, 3)),
    "took": (pl.Duration("us"), dt.timedelta(days=-1, microseconds=1)),
    "waits": (pl.List(pl.Duration("ms")), [dt.timedelta(seconds=1.5), None, dt.timedelta()]),
    "price": (pl.Decimal(10, 2), Decimal("1.50")),
    "color": (pl.Enum(["red"]), "red"),
    "raws": (pl.List(pl.Binary()), [b"\xff", None]),
    "pair": (pl.Array(pl.Time(), 2), [dt.time(1), dt.time(2)]),
    "inner": (pl.Struct({"raw": pl.Binary(), "n": pl.Int8()}), {"raw": b"\xff", "n": 1}),
}


@pytest.mark.parametrize("format", ["jsonl", "csv"])
@pytest.mark.parametrize("name", TYPES)
def test_text_keeps_every_value_that_it_can_hold(tmp_path: Path, format: str, name: str) -> None:
    dtype, value = TYPES[name]
    rows = pl.DataFrame({"n": [1, 2], name: [value, None]}, schema={"n": pl.Int64(), name: dtype})
    system = FilesSystem(str(tmp_path / "out"), format=format, columns=dict(rows.schema))
    if format == "csv" and dtype.is_nested():
        with pytest.raises(DeclarationError, match=f"CSV can't hold column '{name}' of type"):
            system.admin().create("out", 1, dict(rows.schema))
        return
    system.admin().create("out", 1, dict(rows.schema))
    system.target("out").publish(WRITER, 1, [rows])
    assert rows_of(read(system)[0]) == rows.rows()


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_an_app_reads_back_what_an_app_wrote(tmp_path: Path, format: str) -> None:
    kept = {name: both for name, both in TYPES.items() if format == "jsonl" or not both[0].is_nested()}
    columns = {name: dtype for name, (dtype, _) in kept.items()}
    rows = pl.DataFrame({name: [value, None] for name, (_, value) in kept.items()}, schema=columns)
    rows.write_parquet(tmp_path / "first.parquet")
    source = hr.io.files(str(tmp_path / "first.parquet"))
    for number, form in enumerate((format, "parquet")):
        app = hr.App(f"copy-{number}", home=tmp_path / "home")
        target = tmp_path / f"out-{number}"
        app.input("in", columns, system=source).send_to(app.output("out", system=hr.io.files(str(target), format=form)))
        app.run(local=True, progress=False)
        source = hr.io.files(str(target))
    assert pl.read_parquet(tmp_path / "out-1" / "*.parquet").select(rows.columns).rows() == rows.rows()


def test_what_a_format_cannot_hold_is_reported(tmp_path: Path) -> None:
    """An output without declared columns may get any."""
    target = FilesSystem(str(tmp_path), format="csv").target("out")
    with pytest.raises(DataError, match="can't be written as csv") as caught:
        target.publish(WRITER, 1, [pl.DataFrame({"a": [[1, 2]]})])
    assert not caught.value.retry
    assert list(tmp_path.iterdir()) == []


def test_an_output_is_a_folder_and_is_not_trimmed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="can't create the folder"):
        FilesSystem(str(tmp_path / "file")).admin().create("out", 1)
    admin = FilesSystem(str(tmp_path)).admin()
    with pytest.raises(UsageError, match="doesn't delete input files"):
        admin.trim(ssp(), 5)
    admin.report_position(ssp(), "readers", 5)
    assert admin.reported_positions("input", "readers") == {0: 5}


def test_a_file_that_was_taken_away_does_not_come_back_after_a_death_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer may move files away as soon as they have their name, even if the writer dies just then."""
    steps = 0
    while True:
        folder = tmp_path / f"{steps}"
        taken: list[tuple[object, ...]] = []
        died = _dies_at(steps, folder, monkeypatch)
        taken += _taken(folder)
        again = FilesSystem(str(folder), format="jsonl").target("out")
        again.publish(WRITER, 1, [table(3)])
        again.publish(WRITER, 2, [table(6)[3:]])
        taken += _taken(folder)
        assert taken == table(6).rows(), f"at step {steps}"
        if not died:
            break
        steps += 1
    assert steps > 4


class _Death(BaseException):
    """Like kill -9: nothing cleans up."""


def _dies_at(step: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Publish version 1, and die before the system call of that number (those that change what is on the disk)."""
    left = iter(range(step, -1, -1))

    def mortal(call):
        def dies(*args, **kwargs):
            if next(left, 1) == 0:
                raise _Death
            return call(*args, **kwargs)

        return dies

    with monkeypatch.context() as patch:
        for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "write_text"), (Path, "mkdir"), (Path, "unlink")):
            patch.setattr(owner, name, mortal(getattr(owner, name)))
        try:
            FilesSystem(str(folder), format="jsonl").target("out").publish(WRITER, 1, [table(3)])
        except _Death:
            return True
    return False


def _taken(folder: Path) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for path in sorted(folder.glob("[!.]*.jsonl")):
        rows += pl.read_ndjson(path).rows()
        path.unlink()
    return rows
