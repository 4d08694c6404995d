"""Queries over small tables that change, against DuckDB: what a flow adds up to is what DuckDB answers."""

from __future__ import annotations

import random

import duckdb
import polars as pl
import pytest

import headrace as hr
from headrace.rows.changes import CHANGE, added_up

TABLES = "CREATE TABLE a (k BIGINT, x BIGINT, s STRING); CREATE TABLE b (k BIGINT, y BIGINT, s STRING)"
QUERIES = [
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
    "WITH big AS (SELECT * FROM a WHERE x > 1) SELECT big.k, y FROM big JOIN b USING (k)",
    "SELECT a.k, sum(x * y) AS product FROM a JOIN b ON a.k = b.k GROUP BY a.k",
    "SELECT k + 1 AS k, avg(x) AS mean FROM a GROUP BY k + 1",
    "SELECT one.x AS x, two.x AS other FROM a AS one JOIN a AS two ON one.k = two.k AND one.x < two.x",
]


def rows_of(seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    made = random.Random(seed)

    def table(name: str) -> pl.DataFrame:
        rows = [(made.choice([1, 2, 3, 4, None]), made.randint(0, 5), made.choice("uvw")) for _ in range(12)]
        return pl.DataFrame(rows, schema={"k": pl.Int64, name: pl.Int64, "s": pl.String}, orient="row")

    return table("x"), table("y")


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_flow_adds_up_to_what_duckdb_answers(query: str, seed: int) -> None:
    a, b = rows_of(seed)
    app = hr.App("small")
    app.sql(TABLES)
    app.sql(f"INSERT INTO found {query}")
    used = {spec.id for spec in app.graph().streams.values()}
    with app.test() as t:
        for start in range(0, 12, 4):
            for name, table in (("a", a), ("b", b)):
                if name in used:
                    t.feed(name, table.slice(start, 4))
        t.end()
        found = t.read("found")
    with duckdb.connect() as connection:
        connection.register("a", a.to_arrow())
        connection.register("b", b.to_arrow())
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
