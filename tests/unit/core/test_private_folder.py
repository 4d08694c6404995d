"""What Headrace keeps is for its owner, unless somebody opens it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.private_folder import make_private_folder


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
    assert mode(home / "state") == mode(home / "state" / "app") == 0o755


def test_the_current_folder_is_above_a_relative_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    make_private_folder(Path(".headrace/streams"))
    assert mode(tmp_path / ".headrace") == 0o700


def test_nobody_else_can_look_into_a_home(tmp_path: Path) -> None:
    """All that an app leaves behind is behind one private folder."""
    tmp_path.chmod(0o755)
    home = tmp_path / "home"
    hr.streams.create_stream("orders", partitions=1, home=home)
    assert mode(home) == 0o700
    app = hr.App("counts", home=str(tmp_path / "of an app"))
    hr.streams.create_stream("rows", partitions=1, schema={"n": pl.Int64}, home=tmp_path / "of an app")
    app.input("rows", {"n": pl.Int64}).send_to(app.output("out"))
    (tmp_path / "of an app").chmod(0o750)  # for a group of users
    with hr.streams.StreamWriter("rows", home=tmp_path / "of an app") as writer:
        writer.write([{"n": 1}])
        writer.seal()
    app.run(local=True, progress=False)
    assert mode(tmp_path / "of an app") == 0o750
    assert mode(tmp_path / "of an app" / "state") == 0o755
