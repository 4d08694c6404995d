"""What can't be planned is refused with its place, and with a hint that works when it is followed."""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

import polars as pl
import pytest

import headrace as hr

TABLES = """
CREATE TABLE clicks (url STRING, member STRING, amount DOUBLE, at TIMESTAMP(3),
    WATERMARK FOR at AS at - INTERVAL '5' SECOND);
CREATE TABLE members (id STRING, city STRING);
CREATE TABLE counts (url STRING, n BIGINT);
"""
TUMBLE = "TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(at), INTERVAL '10' SECOND))"
NUMBERED = "SELECT url, at, row_number() OVER (PARTITION BY url ORDER BY at) AS n FROM clicks"
COUNTED = "INSERT INTO f SELECT url, count(*) FROM clicks GROUP BY url"
TO_DATABASE = "WITH ('connector' = 'sql', 'url' = 'sqlite:///x.db', 'table' = 't', 'key' = 'url')"


class Case(NamedTuple):
    """A text, the error, what stands where the error says, a word of the hint, and the text that the hint leads to."""

    text: str
    error: str
    there: str
    hint: str
    followed: str | None = None


CASES = [
    # no SQL
    Case("SELEC url FROM clicks", "isn't SQL", "FROM", "docs/sql.md", "SELECT url FROM clicks"),
    Case(
        "SELECT url,\n  member x y\nFROM clicks", "isn't SQL", "y\n", "docs/sql.md", "SELECT url, member x FROM clicks"
    ),
    Case("SELECT url\nFROM", "table name after 'FROM'", "FROM", "docs/sql.md", "SELECT url FROM clicks"),
    Case("SELECT url FROM clicks\nWHERE url = '/a", "' begins has no end", "'/a", "close it", "SELECT url FROM clicks"),
    Case("SELECT url /* or\nmember FROM clicks", "/* begins has no end", "/*", "close it", "SELECT url FROM clicks"),
    Case("hello", "HELLO is no statement", "hello", "SELECT"),
    Case("DROP TABLE clicks", "DROP is no statement", "clicks", "CREATE VIEW"),
    Case("SHOW TABLES", "SHOW is no statement", "TABLES", "headrace sql"),
    # names
    Case("SELECT url FROM click", "no table click", "click", "did you mean clicks?", "SELECT url FROM clicks"),
    Case("SELECT url FROM q", "no table q", "q", "there are clicks, members, counts", "SELECT url FROM clicks"),
    Case("SELECT ulr FROM clicks", "no column ulr", "ulr", "did you mean url?", "SELECT url FROM clicks"),
    Case(
        "SELECT url FROM clicks WHERE\n  c.url = 'a'",
        "no column c.url",
        "c.url",
        "did you mean url?",
        "SELECT url FROM clicks c WHERE c.url = 'a'",
    ),
    Case(
        "SELECT at FROM clicks a JOIN clicks b ON a.url = b.url",
        "at may mean a.at and b.at",
        "at FROM",
        "write the table before it",
        "SELECT a.at FROM clicks a JOIN clicks b ON a.url = b.url",
    ),
    Case(
        "CREATE TABLE clicks (url STRING)",
        "clicks is there already",
        "clicks",
        "another name",
        "CREATE TABLE clicks2 (url STRING)",
    ),
    Case(
        "CREATE TABLE x (a STRING,\n a BIGINT)", "two columns a", "a BIGINT", "leave one out", "CREATE TABLE x (a INT)"
    ),
    Case("SELECT qqqq(url) FROM clicks", "no function qqqq", "qqqq", "functions={...}"),
    # types
    Case(
        "SELECT url,\n  amount + url FROM clicks",
        "this is String, and a number is needed",
        "url FROM",
        "CAST",
        "SELECT amount + CAST(url AS DOUBLE) AS x FROM clicks",
    ),
    Case(
        "SELECT url FROM clicks WHERE url = 3",
        "String can't be compared with Int32",
        "url = 3",
        "CAST",
        "SELECT url FROM clicks WHERE CAST(url AS INT) = 3",
    ),
    Case(
        "SELECT sum(url) FROM clicks",
        "numbers are needed",
        "sum(url)",
        "CAST",
        "SELECT sum(CAST(url AS DOUBLE)) FROM clicks",
    ),
    Case(
        "INSERT INTO counts SELECT url,\n  member FROM clicks",
        "n of counts is Int64, and the query's is String",
        "member",
        "CAST",
        "INSERT INTO counts SELECT url, CAST(member AS BIGINT) FROM clicks",
    ),
    Case(
        "SELECT c.url FROM clicks c JOIN members m ON c.amount = m.id",
        "Float64 can't be equal to String",
        "c.amount",
        "CAST",
        "SELECT c.url FROM clicks c JOIN members m ON CAST(c.amount AS STRING) = m.id".replace(
            "c.amount AS STRING", "c.url AS STRING"
        ),
    ),
    Case(
        "CREATE TABLE x (a STRING,\n WATERMARK FOR a AS a)",
        "watermark's column a is String",
        "a AS a",
        "TIMESTAMP",
        "CREATE TABLE x (a TIMESTAMP, WATERMARK FOR a AS a)",
    ),
    Case(
        "CREATE TABLE x (a STRING,\n WATERMARK FOR b AS b)",
        "watermark's column b isn't a column",
        "b AS b",
        "a column that the stream has",
        "CREATE TABLE x (b TIMESTAMP, WATERMARK FOR b AS b)",
    ),
    Case(
        "CREATE TABLE x (a TIMESTAMP, WATERMARK FOR a AS a + 5)",
        "this watermark isn't supported",
        "a AS",
        "INTERVAL",
        "CREATE TABLE x (a TIMESTAMP, WATERMARK FOR a AS a - INTERVAL '5' SECOND)",
    ),
    Case("SET 'state.ttl' = '7 dayz'", "isn't a duration", "'7 dayz'", "write '7d'", "SET 'state.ttl' = '7d'"),
    Case(
        "SET 'state.tll' = '7d'", "no setting state.tll", "'state.tll'", "SET 'state.ttl' =", "SET 'state.ttl' = '7d'"
    ),
    # without an end
    Case(
        "SELECT url FROM clicks\nORDER BY url",
        "can't be sorted",
        "url",
        "LIMIT 10",
        "SELECT url FROM clicks ORDER BY url LIMIT 10",
    ),
    Case(
        "SELECT url FROM clicks LIMIT 3",
        "LIMIT of a stream",
        "3",
        "ORDER BY",
        "SELECT url FROM clicks ORDER BY at LIMIT 3",
    ),
    Case("SELECT url FROM clicks ORDER BY url LIMIT 0", "number of at least 1", "0", "LIMIT 10"),
    Case(
        NUMBERED,
        "numbers rows without an end",
        "row_number()",
        "WHERE n <= 10",
        f"SELECT * FROM ({NUMBERED}) WHERE n <= 10",
    ),
    Case(
        f"SELECT * FROM ({NUMBERED}) WHERE url = 'a'",
        "without an end",
        "row_number()",
        "WHERE n <= 10",
        f"SELECT * FROM ({NUMBERED}) WHERE url = 'a' AND n <= 10",
    ),
    Case(
        "SELECT url FROM clicks QUALIFY row_number() OVER (ORDER BY at) < 3",
        "QUALIFY isn't supported",
        "row_number()",
        "put a query around",
    ),
    Case(
        "SELECT c.url FROM clicks c JOIN members m ON c.url < m.id",
        "no equality between its sides",
        "members",
        "write ON a.x = b.x",
        "SELECT c.url FROM clicks c JOIN members m ON c.url = m.id AND c.url < m.city",
    ),
    Case(
        "SELECT c.url FROM clicks c, members m",
        "no equality between its sides",
        "members",
        "write ON a.x = b.x",
        "SELECT c.url FROM clicks c, members m WHERE c.url = m.id",
    ),
    # groups
    Case(
        f"SELECT url\nFROM {TUMBLE}",
        "into windows, but not grouped",
        "clicks, DESC",
        "GROUP BY window_start, window_end",
        f"SELECT count(*) FROM {TUMBLE} GROUP BY window_start, window_end",
    ),
    Case(
        "SELECT url, amount, count(*) FROM clicks GROUP BY url",
        "amount is neither grouped by nor aggregated",
        "amount",
        "MAX(amount)",
        "SELECT url, MAX(amount), count(*) FROM clicks GROUP BY url",
    ),
    Case(
        "SELECT url, count(*) FROM clicks",
        "url is neither grouped by nor aggregated",
        "url",
        "add it to GROUP BY",
        "SELECT url, count(*) FROM clicks GROUP BY url",
    ),
    Case(
        "SELECT url FROM clicks GROUP BY 3",
        "no column number 3",
        "3",
        "write 1 to 1",
        "SELECT url FROM clicks GROUP BY 1",
    ),
    Case("SELECT url FROM clicks GROUP BY CUBE (url)", "CUBE isn't supported", "url)", "docs/sql.md"),
    Case(
        "SELECT count(*) FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(amount), INTERVAL '1' DAY)) GROUP BY window_start",
        "amount isn't the event time; the event time is at",
        "amount",
        "WATERMARK FOR",
    ),
    Case(
        "SELECT url FROM clicks UNION ALL SELECT id FROM members ORDER BY url LIMIT 3",
        "LIMIT isn't supported",
        "3",
        "put a query around",
        "SELECT * FROM (SELECT url FROM clicks UNION ALL SELECT id FROM members) ORDER BY url LIMIT 3",
    ),
    # outputs
    Case(
        "INSERT INTO o SELECT url FROM clicks;\nINSERT INTO o SELECT url FROM clicks",
        "written by two statements",
        "o SELECT",
        "UNION ALL",
        "INSERT INTO o SELECT url FROM clicks UNION ALL SELECT url FROM clicks",
    ),
    Case(
        "INSERT INTO counts SELECT url FROM clicks",
        "the query has 1 columns, and counts takes 2",
        "url FROM",
        "it takes url, n",
        "INSERT INTO counts SELECT url, 1 FROM clicks",
    ),
    Case(
        "INSERT INTO counts (url, m) SELECT url, 1 FROM clicks",
        "counts has no column m",
        "m)",
        "there are url, n",
        "INSERT INTO counts (url, n) SELECT url, 1 FROM clicks",
    ),
    Case(
        "INSERT INTO o SELECT url AS a, member AS a FROM clicks",
        "two columns are called a",
        "member",
        "AS name",
        "INSERT INTO o SELECT url AS a, member AS b FROM clicks",
    ),
    Case("INSERT OVERWRITE o SELECT url FROM clicks", "can't be overwritten", "o SELECT", "write INSERT INTO"),
    Case(
        "INSERT INTO clicks SELECT url, member, amount, at FROM clicks",
        "clicks is written by this app",
        "clicks",
        "CREATE VIEW",
    ),
    Case(
        f"CREATE TABLE f (url STRING, n BIGINT) {TO_DATABASE};\n{COUNTED}",
        "sql only takes new rows, and this query changes earlier ones",
        "f SELECT",
        "PRIMARY KEY and a column deleted",
        f"CREATE TABLE f (url STRING PRIMARY KEY, n BIGINT, deleted BOOLEAN) {TO_DATABASE};{COUNTED}",
    ),
    # connectors
    Case(
        "CREATE TABLE f (url STRING) WITH ('connector' = 'filez');\nINSERT INTO f SELECT url FROM clicks",
        "no connector 'filez'",
        "'connector'",
        "did you mean 'files'?",
    ),
    Case(
        "CREATE TABLE f (url STRING) WITH ('connector'='kafka', 'broker'='h');\nINSERT INTO f SELECT url FROM clicks",
        "'kafka' has no option 'broker'",
        "'broker'",
        "did you mean 'brokers'?",
        "CREATE TABLE f (u STRING) WITH ('connector'='kafka', 'brokers'='h:1');\nINSERT INTO f SELECT url FROM clicks",
    ),
    Case(
        "CREATE TABLE f (url STRING) WITH ('connector' = 'kafka');\nINSERT INTO f SELECT url FROM clicks",
        "'kafka' needs the option 'brokers'",
        "'connector'",
        "add 'brokers' =",
    ),
    Case(
        "CREATE TABLE f (url STRING) WITH ('partitions' = 'four');\nINSERT INTO f SELECT url FROM clicks",
        "'four' isn't a number of partitions",
        "'partitions'",
        "'partitions' = '4'",
        "CREATE TABLE f (url STRING) WITH ('partitions' = '4');\nINSERT INTO f SELECT url FROM clicks",
    ),
]


def app_of(text: str) -> hr.App:
    app = hr.App("bad")
    app.sql(TABLES)
    app.sql(text)
    return app


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.error)
def test_an_error_says_where_and_what_to_do(case: Case) -> None:
    with pytest.raises(hr.errors.HeadraceError, match=re.escape(case.error)) as raised:
        app_of(case.text)
    place = re.search(r"\(line (\d+), column (\d+)", str(raised.value))
    assert place is not None, raised.value
    lines = case.text.splitlines(keepends=True)
    line, column = map(int, place.groups())
    assert "".join(lines[line - 1 :])[column - 1 :].startswith(case.there), raised.value
    assert case.hint in (raised.value.hint or "")


@pytest.mark.parametrize("case", [case for case in CASES if case.followed], ids=lambda case: case.error)
def test_the_hint_works(case: Case) -> None:
    app_of(case.followed or "")


def test_options_of_tables_may_be_passwords_so_no_error_and_no_plan_quotes_them() -> None:
    secret = "postgresql://ann:hidden@host/shop"
    app = hr.App("secrets")
    app.sql(TABLES)
    for options in (f"'url' = '{secret}', 'tabel' = 't'", f"'url' = '{secret}', 'key' = 'x'"):
        name = f"t{len(options)}"
        app.sql(f"CREATE TABLE {name} (url STRING) WITH ('connector' = 'sql', {options})")
        with pytest.raises(hr.errors.HeadraceError) as raised:
            app.sql(f"INSERT INTO {name} SELECT url FROM clicks")
        assert "hidden" not in str(raised.value)
    with pytest.raises(hr.errors.HeadraceError, match="is there already") as raised:
        app.sql(f"CREATE TABLE clicks (url STRING) WITH ('url' = '{secret}')")
    assert "hidden" not in str(raised.value)


def test_an_error_in_a_view_names_the_view() -> None:
    app = hr.App("views")
    app.sql(TABLES)
    app.sql("CREATE VIEW v AS\nSELECT ulr FROM clicks")
    with pytest.raises(
        hr.errors.HeadraceError, match=r"in the view v of .*: there is no column ulr \(line 2, column 8"
    ):
        app.sql("SELECT * FROM v")


def test_what_is_sorted_by_need_not_be_selected() -> None:
    app = hr.App("sorted")
    app.sql(TABLES)
    app.sql("INSERT INTO last SELECT c.url FROM clicks c ORDER BY c.at DESC LIMIT 1")
    app.sql("INSERT INTO most SELECT url FROM clicks GROUP BY url ORDER BY count(*) DESC, 1 LIMIT 1")
    with app.test() as t:
        urls = pl.DataFrame({"url": ["/a", "/b", "/b", "/c"], "at": range(4)})
        urls = urls.with_columns(pl.col("at").cast(pl.Datetime("ms")))
        t.feed("clicks", urls.with_columns(pl.lit("ann").alias("member"), pl.lit(1.0).alias("amount")))
        t.end()
        assert t.read("last").columns == ["url", "_change"]
        assert t.read("last").row(-1) == ("/c", "insert")
        assert t.read("most").row(-1) == ("/b", "insert")


def test_changes_reach_a_database_as_the_new_row_of_each_key() -> None:
    app = hr.App("kept")
    app.sql(TABLES)
    app.sql(f"CREATE TABLE f (url STRING PRIMARY KEY, n BIGINT, deleted BOOLEAN) {TO_DATABASE}")
    app.sql(f"{COUNTED} HAVING count(*) < 3")
    with app.test() as t:
        for _ in range(3):
            t.feed("clicks", [{"url": "/a", "member": "ann", "amount": 1.0, "at": datetime(2026, 1, 1)}])
        t.end()
        first, *_, last = t.read("f").rows()
        assert (first, last) == (("/a", 1, False), ("/a", 2, True))
