"""Whole apps into a database: run twice, and with rows that have no key."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from chaos.postgres_server import PostgresServer
from headrace.connectors.sql.system import open_sql

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


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_null_in_the_key_stops_the_app_before_the_database_sees_it(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """SQLite takes two nulls for different keys, and PostgreSQL takes none. After a commit nothing could be done."""
    url = f"sqlite:///{tmp_path}/seen.db" if kind == "sqlite" else request.getfixturevalue("postgres").url
    table = hr.io.sql(url, "seen_by_key", key=["member", "site"])
    rows = {"member": ["ann", None, "bob"], "site": ["a", "a", "b"], "n": [1, 2, 3]}
    columns = {"member": pl.String, "site": pl.String, "n": pl.Int64}
    pl.DataFrame(rows).write_parquet(tmp_path / "views.parquet")

    def run(*, filtered: bool) -> None:
        app = hr.App("seen", home=str(tmp_path / "home"))
        views = app.input("views", columns, system=hr.io.files(tmp_path / "views.parquet"))
        if filtered:
            views = views.filter(pl.col("member").is_not_null())
        views.send_to(app.output("seen", system=table))
        app.run(local=True, progress=False)

    says = r"step 'send_to-1' .* sends rows without a key to 'seen': 'member' is null in 1 of 3 .*views\[0\]"
    with pytest.raises(hr.errors.DataError, match=says) as caught:
        run(filtered=False)
    assert caught.value.hint == "leave them out before it: .filter(pl.col('member').is_not_null())"
    run(filtered=True)  # nothing of the failed run has been committed
    with closing(open_sql("seen", table.system("seen").options).client()) as client:
        found = client.find([("ann", "a"), ("bob", "b")], ["member", "n"])
    assert sorted(found) == [("ann", 1), ("bob", 3)]
