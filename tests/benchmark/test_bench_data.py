"""The data of the benchmark: peers get the first part of the same files, and commits are counted."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from bench import data, pipelines
from bench.measure import WrongResultError
from bench.throughput import commits, files_of


def test_the_first_rows_of_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "AT_ONCE", 300)
    views = data.page_views(tmp_path / "views", 2000, 10, 2)
    assert [pl.read_parquet(file).height for file in sorted(views.glob("*"))] == [1000, 1000]
    fewer = data.first_views(views, tmp_path / "fewer", 4)
    for file in views.glob("*"):
        assert pl.read_parquet(fewer / file.name).equals(pl.read_parquet(file).head(250))


def test_the_running_count_is_checked(tmp_path: Path) -> None:
    right = data.running_counts(data.page_views(tmp_path / "views", 2000, 10, 2))
    data.check_numbers("a peer", right.sample(fraction=1, shuffle=True, seed=1), right)
    with pytest.raises(WrongResultError):
        data.check_numbers("a peer", right.with_columns(pl.col("n") + 1), right)


def test_apps_are_right_and_their_commits_are_counted(tmp_path: Path) -> None:
    views = data.page_views(tmp_path / "views", 200_000, 100, 2)
    pipelines.running_count(tmp_path / "running", files_of(views)).run(local=True, progress=False)
    pipelines.check_running(tmp_path / "running", data.running_counts(views))
    app = pipelines.windowed_count(tmp_path / "count", files_of(views), checkpoint_interval="10ms")
    app.run(local=True, progress=False)
    pipelines.check_counts(tmp_path / "count", data.windowed_counts(views))
    assert 1 <= commits(tmp_path / "count") < 1000
