"""Queries over small tables that change, against DuckDB: what a flow adds up to is what DuckDB answers."""

from __future__ import annotations

import random
from datetime import datetime

import duckdb
import polars as pl
import pytest

import headrace as hr
from headrace.rows.changes import CHANGE, added_up

TABLES = (
    "CREATE TABLE a (k BIGINT, x BIGINT, s STRING); CREATE TABLE b (k BIGINT, y BIGINT, s STRING);"
    "CREATE TABLE c (k BIGINT, z BIGINT, s STRING)"
)
QUERIES = [
    "SELECT a.k, x, y FROM a LEFT JOIN b ON a.k = b.k WHERE y IS NULL OR y > 2",
    "SELECT k, sum(n) AS total FROM (SELECT k, count(*) AS n FROM a GROUP BY k"
    " UNION ALL SELECT k, count(*) AS n FROM b GROUP BY k) AS u GROUP BY k",
    "SELECT k, n, rn FROM (SELECT k, n, row_number() OVER (ORDER BY n DESC, k) AS rn"
    " FROM (SELECT k, count(*) AS n FROM a GROUP BY k) AS q) AS r WHERE rn <= 2",
    "SELECT a.k, b.y, c.x FROM a JOIN b ON a.k = b.k LEFT JOIN a AS c ON c.x = b.y AND c.k = a.k",
    "SELECT coalesce(a.k, b.k) AS k, x, y FROM a FULL JOIN b ON a.k = b.k AND a.s = b.s",
    "SELECT k, count(*) AS n, sum(x) AS total FROM a GROUP BY k",
    "SELECT count(*) AS n, count(DISTINCT k) AS keys, max(x) AS most FROM a",
    "SELECT k, count(DISTINCT x) FILTER (WHERE x > 2) AS n, min(x) AS least FROM a GROUP BY k HAVING count(*) > 1",
    "SELECT n, count(*) AS m FROM (SELECT k, count(*) AS n FROM a GROUP BY k) AS q GROUP BY n",
    "SELECT a.k, x, y FROM a JOIN b ON a.k = b.k",
    "SELECT a.k, x, y FROM a JOIN b ON a.k = b.k AND x < y",
    "SELECT a.k AS k, b.k AS bk, x, y FROM a LEFT JOIN b ON a.k = b.k",
    "SELECT a.k AS k, b.k AS bk, x, y FROM a RIGHT JOIN b ON a.k = b.k AND x < y",
    "SELECT a.k AS k, b.k AS bk, x, y FROM a FULL JOIN b ON a.k = b.k",
    "SELECT a.k, n, y FROM (SELECT k, count(*) AS n FROM a GROUP BY k) AS a LEFT JOIN b ON a.k = b.k AND n <= y",
    "SELECT k, x FROM a WHERE k IN (SELECT k FROM b WHERE y > 2)",
    "SELECT k, x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND y > x)",
    "SELECT k, x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "SELECT DISTINCT k, s FROM a",
    "SELECT k, s FROM a UNION ALL SELECT k, s FROM b",
    "SELECT k, s FROM a UNION SELECT k, s FROM b",
    "SELECT * FROM (SELECT k, x, row_number() OVER (PARTITION BY k ORDER BY x DESC) AS n FROM a) WHERE n <= 2",
    "SELECT k, n FROM (SELECT k, count(*) AS n FROM a GROUP BY k) AS q ORDER BY n DESC, k LIMIT 3",
    "SELECT k, n FROM (SELECT k, count(*) AS n FROM a GROUP BY k) ORDER BY k DESC NULLS FIRST LIMIT 2",
    "SELECT k, n FROM (SELECT k, count(*) AS n FROM a GROUP BY k) ORDER BY k NULLS LAST LIMIT 2",
    "SELECT n, count(*) AS m FROM (SELECT k, count(*) AS n FROM a GROUP BY k) GROUP BY n",
    "SELECT k, sum(x + 1) AS more, sum(x - 1) AS less, sum(CASE WHEN x <> 2 THEN 1 ELSE 0 END) AS others,"
    " sum(CASE WHEN x = 2 THEN 1 ELSE 0 END) AS twos FROM a GROUP BY k",
    "SELECT count(*) FILTER (WHERE s IN ('u', 'v')) AS n, count(*) FILTER (WHERE s IN ('v', 'w')) AS m FROM a",
    "SELECT n + 1 AS n FROM (SELECT count(DISTINCT k) AS n FROM a) WHERE n > 2",
    "SELECT k FROM (SELECT k, row_number() OVER (PARTITION BY s ORDER BY k, x, s) AS n FROM a) WHERE n <= 1",
    "WITH big AS (SELECT * FROM a WHERE x > 1) SELECT big.k, y FROM big JOIN b USING (k)",
    "SELECT a.k, sum(x * y) AS product FROM a JOIN b ON a.k = b.k GROUP BY a.k",
    "SELECT k + 1 AS k, avg(x) AS mean FROM a GROUP BY k + 1",
    "SELECT a.k, one.y AS y, two.y AS z FROM a, b AS one, b AS two WHERE a.k = one.k AND a.x = two.k",
    "SELECT a.x AS x, one.y AS y, c.y AS z FROM a, b AS one, b AS c WHERE a.k = c.k AND c.y = one.y",
    "SELECT one.x AS x, two.x AS other FROM a AS one JOIN a AS two ON one.k = two.k AND one.x < two.x",
    "SELECT a.k AS k, c.k AS ck, z FROM a JOIN b ON a.k = b.k RIGHT JOIN c ON a.k = c.k WHERE x = 1",
    "SELECT a.k AS k, c.k AS ck, z FROM a JOIN b ON a.k = b.k FULL JOIN c ON a.k = c.k WHERE x > y",
    "SELECT a.k, x FROM a JOIN b ON a.k = b.k WHERE a.k IN (SELECT k FROM c)",
    "SELECT b.y, c.z, a.x FROM a JOIN b ON a.x + 1 = b.y JOIN c ON a.k + 1 = c.z",
    "SELECT k, x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND s = 'u')",
    "SELECT k, x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE k = a.k AND s = 'u')",
    "WITH a AS (SELECT * FROM a WHERE x > 1) SELECT k, x FROM a",
    "WITH q AS (SELECT k, count(*) AS n FROM a GROUP BY k) SELECT one.k, two.n FROM q AS one JOIN q AS two "
    "ON one.n = two.k",
    "SELECT k, x FROM a ORDER BY s, x DESC, k LIMIT 4",
    "SELECT k, x, y FROM a LEFT JOIN b USING (k)",
    "SELECT k, a.k AS ak, x, y FROM a RIGHT JOIN b USING (k) WHERE k > 1",
    "SELECT * FROM (SELECT k, x FROM a) AS a JOIN (SELECT k, y FROM b) AS b USING (k)",
    "SELECT k, x, y, z FROM a LEFT JOIN b USING (k) JOIN c USING (k)",
    "SELECT n, count(*) AS m FROM (SELECT k, count(*) AS n FROM a GROUP BY k) GROUP BY n",
    "SELECT * FROM (SELECT k, s, x, row_number() OVER (PARTITION BY k ORDER BY s DESC NULLS FIRST, x) AS n FROM a) "
    "WHERE n <= 2",
]
REFUSED = {
    "SELECT DISTINCT k, s, row_number() OVER (PARTITION BY k ORDER BY s) AS n FROM a": "beside DISTINCT and ORDER BY",
    "SELECT r.k, y FROM (SELECT k, x, row_number() OVER (PARTITION BY k ORDER BY x) AS n FROM a) AS r JOIN b "
    "ON r.k = b.k WHERE r.n <= 1": "numbers rows without an end",
    "SELECT k, k, s FROM a UNION ALL SELECT k, y, s FROM b": "two columns have one name",
    "SELECT count(DISTINCT k, s) AS n FROM a": "takes one column",
    "SELECT k FROM a WHERE EXISTS (SELECT count(*) FROM b WHERE b.k = a.k)": "EXISTS takes a plain query",
}


def rows_of(seed: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    made = random.Random(seed)

    def table(name: str) -> pl.DataFrame:
        rows = [(made.choice([1, 2, 3, 4, None]), made.randint(0, 5), made.choice([*"uvw", None])) for _ in range(12)]
        return pl.DataFrame(rows, schema={"k": pl.Int64, name: pl.Int64, "s": pl.String}, orient="row")

    return table("x"), table("y"), table("z")


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_flow_adds_up_to_what_duckdb_answers(query: str, seed: int) -> None:
    a, b, c = rows_of(seed)
    app = hr.App("small")
    app.sql(TABLES)
    app.sql(f"INSERT INTO found {query}")
    used = {spec.id for spec in app.graph().streams.values()}
    with app.test() as t:
        for start in range(0, 12, 4):
            for name, table in (("a", a), ("b", b), ("c", c)):
                if name in used:
                    t.feed(name, table.slice(start, 4))
        t.end()
        found = t.read("found")
    with duckdb.connect() as connection:
        connection.sql("SET default_null_order = 'sqlite'")  # as in Spark: first without DESC, and last with it
        connection.register("a", a.to_arrow())
        connection.register("b", b.to_arrow())
        connection.register("c", c.to_arrow())
        connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")  # as in Spark
        right = connection.sql(query).fetchall()
    rows = (added_up(found) if CHANGE in found.columns else found).rows()
    assert sorted(rows, key=repr) == sorted(right, key=repr)


def test_a_statement_set_is_its_statements() -> None:
    app = hr.App("set")
    app.sql(
        f"{TABLES}; EXECUTE STATEMENT SET BEGIN INSERT INTO one SELECT k FROM a; INSERT INTO two SELECT x FROM a; END"
    )
    with app.test() as t:
        t.feed("a", [{"k": 1, "x": 2, "s": ""}])
        t.end()
        assert (t.read("one").rows(), t.read("two").rows()) == ([(1,)], [(2,)])


@pytest.mark.parametrize("query", REFUSED)
def test_what_would_mean_something_else_is_refused(query: str) -> None:
    app = hr.App("small")
    app.sql(TABLES)
    with pytest.raises(hr.errors.DeclarationError, match=REFUSED[query]):
        app.sql(query)


def test_count_of_two_columns_counts_rows_where_neither_is_null() -> None:
    app = hr.App("small")
    app.sql(TABLES)
    app.sql("INSERT INTO found SELECT count(k, s) AS n FROM a")
    with app.test() as t:
        t.feed("a", [{"k": 1, "x": 0, "s": None}, {"k": None, "x": 0, "s": "u"}, {"k": 1, "x": 0, "s": "u"}])
        t.end()
        assert added_up(t.read("found")).rows() == [(1,)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a.k AS k, b.k AS bk FROM a RIGHT JOIN b ON {on}",
        "SELECT k FROM a WHERE EXISTS (SELECT 1 FROM b WHERE {on})",
        "SELECT k FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE {on})",
    ],
)
def test_a_bound_of_time_holds_in_joins_that_keep_all_rows(query: str) -> None:
    query = query.format(on="a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' MINUTE")
    rows = {
        "a": pl.DataFrame({"k": [1, 2], "ts": [0, 0]}),
        "b": pl.DataFrame({"k": [1, 2], "ts": [30_000, 90_000]}),
    }
    rows = {name: frame.with_columns(pl.col("ts").cast(pl.Datetime("ms"))) for name, frame in rows.items()}
    app = hr.App("small")
    for name in rows:
        app.sql(f"CREATE TABLE {name} (k BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts)")
    app.sql(f"INSERT INTO found {query}")
    with app.test() as t:
        for name, frame in rows.items():
            t.feed(name, frame)
        t.end()
        found = added_up(t.read("found")).rows()
    with duckdb.connect() as connection:
        for name, frame in rows.items():
            connection.register(name, frame.to_arrow())
        assert sorted(found, key=repr) == sorted(connection.sql(query).fetchall(), key=repr)


def test_columns_that_an_insert_leaves_out_are_null() -> None:
    app = hr.App("small")
    app.sql(TABLES)
    app.sql("CREATE TABLE found (n BIGINT, t STRING, m BIGINT)")
    app.sql("INSERT INTO found (t, n) SELECT s, x FROM a")
    with app.test() as t:
        t.feed("a", [{"k": 1, "x": 2, "s": "u"}])
        t.end()
        assert t.read("found").rows(named=True) == [{"n": 2, "t": "u", "m": None}]


EVENTS = "CREATE TABLE e (k BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts); "
WINDOWS = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(ts), INTERVAL '10' SECOND))"


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (f"SELECT window_start, k FROM {WINDOWS.format('e')}", "rows are put into windows, but not grouped by them"),
        (
            f"SELECT count(*) AS n FROM {WINDOWS.format('e')} WHERE window_end > ts GROUP BY window_start, window_end",
            "isn't known before rows are grouped into windows",
        ),
        (
            "CREATE VIEW v AS SELECT k, max(ts) AS ts FROM e GROUP BY k; SELECT count(*) AS n "
            f"FROM {WINDOWS.format('v')} GROUP BY window_start, window_end",
            "'ts' was aggregated",
        ),
        ("SELECT k, max(ts) AS ts, ts + INTERVAL '1' DAY AS later FROM e GROUP BY k", "neither grouped by"),
    ],
)
def test_an_error_says_what_a_column_is_not(statements: str, says: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=says):
        hr.App("small").sql(EVENTS + statements)


def test_results_of_moved_windows_are_grouped_by_the_same_bounds() -> None:
    app = hr.App("moved")
    app.sql("""
        CREATE TABLE a (k STRING, t TIMESTAMP(3), WATERMARK FOR t AS t);
        INSERT INTO found SELECT window_start, window_end, sum(n) AS n FROM (
            SELECT k, window_start, window_end, count(*) AS n
            FROM TABLE(HOP(TABLE a, DESCRIPTOR(t), INTERVAL '4' SECOND, INTERVAL '10' SECOND, INTERVAL '1' SECOND))
            GROUP BY k, window_start, window_end
        ) AS q GROUP BY window_start, window_end
    """)
    with app.test() as t:
        t.feed("a", [{"k": k, "t": datetime(2026, 1, 1, 0, 0, 12)} for k in "uvw"])
        t.end()
        found = t.read("found").sort("window_start")
    assert [(one.second, two.second, n) for one, two, n in found.rows()] == [(5, 15, 3), (9, 19, 3)]
