"""What Headrace keeps is for its owner, unless somebody opens it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.files import make_private, make_private_folder, open_private, write_private
from headrace.life.folder import Shelf, export


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    previous = os.umask(0o022)
    yield
    os.umask(previous)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_topmost_new_folder_is_for_its_owner(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path / "home" / "state" / "app")
    assert mode(tmp_path / "home") == 0o700
    assert mode(tmp_path) == 0o755


def test_a_home_that_was_opened_to_a_group_stays_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o750)
    make_private_folder(home / "state" / "app")
    make_private_folder(home / "state" / "app")
    assert mode(home) == 0o750
    assert mode(home / "state") == mode(home / "state" / "app") == 0o750


def test_the_current_folder_is_above_a_relative_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    make_private_folder(Path(".headrace/streams"))
    assert mode(tmp_path / ".headrace") == 0o700


@pytest.mark.parametrize(
    ("above", "file", "folder"), [(0o755, 0o600, 0o700), (0o770, 0o640, 0o750), (0o700, 0o600, 0o700)]
)
def test_what_is_new_takes_the_rights_of_the_group(tmp_path: Path, above: int, file: int, folder: int) -> None:
    tmp_path.chmod(above)
    for name, flags in (("a", os.O_WRONLY), ("b", os.O_WRONLY | os.O_CREAT | os.O_EXCL)):
        os.close(open_private(tmp_path / name, flags))
        assert mode(tmp_path / name) == file
    write_private(tmp_path / "c", b"new")
    (tmp_path / "c").chmod(0o644)
    os.close(open_private(tmp_path / "c", os.O_WRONLY))
    assert (mode(tmp_path / "c"), (tmp_path / "c").read_bytes()) == (0o644, b"new"), "what is there stays as it is"
    with pytest.raises(FileExistsError):
        open_private(tmp_path / "b", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    make_private_folder(tmp_path / "d")
    (tmp_path / "e").mkdir(mode=0o755)
    make_private(tmp_path / "e")
    assert mode(tmp_path / "d") == mode(tmp_path / "e") == folder


@pytest.mark.parametrize(("home_mode", "rights"), [(None, 0o700), (0o755, 0o700), (0o750, 0o750)])
def test_what_an_app_leaves_behind_is_for_nobody_else(tmp_path: Path, home_mode: int | None, rights: int) -> None:
    tmp_path.chmod(0o755)
    home = tmp_path / "home"
    if home_mode is not None:
        home.mkdir()
        home.chmod(home_mode)
    hr.streams.create_stream("rows", partitions=1, schema={"n": pl.Int64}, home=home)
    with hr.streams.StreamWriter("rows", home=home) as writer:
        writer.write([{"n": 1}])
        writer.seal()
    app = hr.App("counts", home=str(home))
    app.input("rows", {"n": pl.Int64}).partition_by("n", id="by-n").send_to(app.table("numbers", key="n"))
    app.run(local=True, progress=False, savepoint="last")
    export(Shelf(home, "counts"), "last", tmp_path / "last.tar", lambda said: None)
    assert mode(tmp_path / "last.tar") == 0o600
    assert mode(home) == (0o700 if home_mode is None else home_mode)
    for path in home.rglob("*"):
        of_rocksdb = any((folder / "CURRENT").exists() for folder in (path.parent, path))
        if path.is_dir():
            assert mode(path) == rights, path
        elif not of_rocksdb and not path.name.startswith("metadata.db"):
            assert mode(path) == rights & 0o666, path
    assert {mode(path) for path in home.glob("metadata.db*")} == {0o600}, "there are tokens in it"
