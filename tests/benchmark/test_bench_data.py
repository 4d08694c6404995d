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
    data.check_rows("a peer", right.sample(fraction=1, shuffle=True, seed=1).cast({"n": pl.UInt32}), right)
    with pytest.raises(WrongResultError, match="with other values"):
        data.check_rows("a peer", right.with_columns(pl.col("n") + 1), right)
    with pytest.raises(WrongResultError, match="expected 16"):
        data.check_rows("a peer", right.head(3), right)


def test_sessions_are_those_of_a_loop(tmp_path: Path) -> None:
    views = data.page_views(tmp_path / "views", 100_000, 10_000, 2)
    kept = pl.read_parquet(views / "*.parquet").filter(pl.col("url") != data.HEALTH).sort("ts")
    found: dict[str, list[list[int]]] = {}
    for member, ts in kept.select("member", "ts").iter_rows():
        sessions = found.setdefault(member, [])
        if sessions and ts <= sessions[-1][1]:
            sessions[-1][1:] = [ts + 300, sessions[-1][2] + 1]
        else:
            sessions.append([ts, ts + 300, 1])
    by_hand = {(member, *session) for member, sessions in found.items() for session in sessions}
    right = data.sessions(views)
    assert set(right.rows()) == by_hand
    assert len(by_hand) == right.height
    assert {1, 2, 5} <= set(right["views"])
    assert right["member"].n_unique() < 0.8 * right.height


def test_pairs_are_those_of_all_views_with_all_orders(tmp_path: Path) -> None:
    both = data.views_and_orders(tmp_path / "both", 8000, 200, 2)
    views = pl.read_parquet(both / "views" / "*.parquet").filter(pl.col("url") != data.HEALTH)
    all_ = views.join(pl.read_parquet(both / "orders" / "*.parquet"), on="member")
    after = all_["ts_right"] - all_["ts"]
    assert {0, 100} <= set(after)  # the bounds belong to it
    right = all_.filter((after >= 0) & (after <= 100)).select("member", "url", "ts", "cents")
    data.check_rows("the join", data.joined(both), right)


def test_each_view_finds_about_one_order(tmp_path: Path) -> None:
    both = data.views_and_orders(tmp_path / "both", 600_000, 10_000, 2)
    views = pl.scan_parquet(both / "views" / "*.parquet").filter(pl.col("url") != data.HEALTH).select(pl.len())
    assert 0.9 < data.joined(both).height / views.collect().item() < 1.1


def test_apps_are_right_and_their_commits_are_counted(tmp_path: Path) -> None:
    views = data.page_views(tmp_path / "views", 200_000, 100, 2)
    pipelines.running_count(tmp_path / "running", files_of(views)).run(local=True, progress=False)
    pipelines.check_running(tmp_path / "running", data.running_counts(views))
    pipelines.sessions(tmp_path / "sessions", files_of(views)).run(local=True, progress=False)
    pipelines.check_sessions(tmp_path / "sessions", data.sessions(views))
    both = data.views_and_orders(tmp_path / "both", 40_000, 1000, 2)
    app = pipelines.interval_join(tmp_path / "join", files_of(both / "views"), files_of(both / "orders"))
    app.run(local=True, progress=False)
    pipelines.check_joined(tmp_path / "join", data.joined(both))
    app = pipelines.windowed_count(tmp_path / "count", files_of(views), checkpoint_interval="10ms")
    app.run(local=True, progress=False)
    pipelines.check_counts(tmp_path / "count", data.windowed_counts(views))
    assert 1 <= commits(tmp_path / "count") < 1000
