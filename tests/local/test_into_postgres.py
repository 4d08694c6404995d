"""A whole app into PostgreSQL, run twice: the second run adds nothing."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from postgres_server import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")


def test_windows_arrive_once_however_often_the_app_is_started(postgres: PostgresServer, tmp_path: Path) -> None:
    data = pl.DataFrame({"member": ["ann", "bob", "ann"] * 1000, "ts": range(3000)})
    data.write_parquet(tmp_path / "views.parquet")

    def run() -> None:
        app = hr.App("views", home=str(tmp_path / "home"))
        views = app.input(
            "views",
            {"member": pl.String, "ts": pl.Int64},
            event_time="ts",
            system=hr.io.files(tmp_path / "views.parquet"),
        )
        counts = views.window(hr.tumbling("1s"), key="member", id="per-second").agg(n=hr.count())
        counts.send_to(app.output("counts", system=hr.io.sql(postgres.url, "counts_of_views")))
        latest = hr.io.sql(postgres.url, "latest_view", key="member")
        views.send_to(app.output("latest", system=latest))
        app.run(local=True, progress=False)

    for _ in range(2):
        run()
    with psycopg.connect(postgres.url) as connection:
        found = connection.execute("SELECT member, window_start, n FROM counts_of_views ORDER BY 2, 1").fetchall()
        seen = connection.execute("SELECT member, ts FROM latest_view ORDER BY 1").fetchall()
        writers = connection.execute("SELECT writer FROM headrace_positions ORDER BY 1").fetchall()
    by_second = data.group_by("member", second=pl.col("ts") // 1000 * 1000).len().sort("second", "member")
    assert found == by_second.select("member", "second", "len").rows()
    assert seen == [("ann", 2999), ("bob", 2998)]
    assert [writer for (writer,) in writers if writer.startswith("views/")] == [
        "views/views/0/counts",
        "views/views/0/latest",
    ]
