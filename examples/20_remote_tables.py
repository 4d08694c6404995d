"""20. Remote tables: join views with members in a database, and count visits in another of its tables.

The database here is SQLite; for PostgreSQL, change the URL. Rows that are read are cached for a minute. Rows are
written exactly once, because the transaction that writes them also stores each task's progress.

It prints::

    located: ann AT, bob CH, eve ?
    later:   eve DE
    visits:  ann 2, bob 1, eve 3
    cache:   1 hits, 5 misses
"""

import sqlite3
import tempfile
from datetime import datetime
from pathlib import Path

import polars as pl

import headrace as hr

folder = tempfile.TemporaryDirectory()
file = Path(folder.name) / "members.db"
url = f"sqlite:///{file}"


def run(statement: str) -> list:
    connection = sqlite3.connect(file)
    with connection:
        rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


run("CREATE TABLE members (member TEXT PRIMARY KEY, country TEXT)")
run("INSERT INTO members VALUES ('ann', 'AT'), ('bob', 'CH')")

app = hr.App("visits")
members = app.table(
    "members",
    key="member",
    schema={"member": pl.String, "country": pl.String},
    remote=hr.tables.cached(hr.tables.sql_table(url, "members"), rows=10_000, ttl="1m"),
)
visits = app.table(
    "visits",
    key="member",
    schema={"member": pl.String, "visits": pl.Int64},
    remote=hr.tables.sql_table(url, "visits"),
)
views = app.input("views", {"member": pl.String, "ts": pl.Datetime("ms")}, event_time="ts")
views.join(members, how="left").send_to("located")
(views.partition_by("member").window(hr.tumbling("1d")).agg(visits=pl.len()).select("member", "visits").send_to(visits))


def view(member: str, second: int) -> dict:
    return {"member": member, "ts": datetime(2026, 1, 1, 12, 0, second)}


def shown(rows: pl.DataFrame) -> str:
    return ", ".join(f"{member} {country or '?'}" for member, country in rows.select("member", "country").rows())


with app.test() as t:
    t.feed("views", [view("ann", 1), view("bob", 2), view("eve", 3)])
    print("located:", shown(t.read("located")))
    run("INSERT INTO members VALUES ('eve', 'DE')")
    t.advance("1m")  # the cache expires, including that there was no eve
    t.feed("views", [view("eve", 4)])
    print("later:  ", shown(t.read("located")[3:]))
    t.feed("views", [view("ann", 5), view("eve", 6)])
    t.end()
    print("visits: ", ", ".join(f"{member} {n}" for member, n in run("SELECT * FROM visits ORDER BY member")))
    print(f"cache:   {t.counter('cache_hits')} hits, {t.counter('cache_misses')} misses")

folder.cleanup()
