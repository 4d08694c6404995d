"""The queries of Nexmark as its project publishes them, without connectors, against DuckDB over the same events.

The files in ``nexmark/`` are those of github.com/nexmark/nexmark (Apache License 2.0), without their WITH clauses.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import duckdb
import polars as pl
import pytest

import headrace as hr
from headrace.rows.changes import CHANGE, added_up

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "examples" / "nexmark"))
import generator  # noqa: E402

EVENTS = 5_000
FEWER = {"q23": 500}
"""The hottest seller is the hottest bidder, too."""
TABLES = """
CREATE TABLE person (id BIGINT, name VARCHAR, emailAddress VARCHAR, creditCard VARCHAR, city VARCHAR, state VARCHAR,
    `dateTime` TIMESTAMP(3), extra VARCHAR, WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND);
CREATE TABLE auction (id BIGINT, itemName VARCHAR, description VARCHAR, initialBid BIGINT, reserve BIGINT,
    `dateTime` TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra VARCHAR,
    WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND);
CREATE TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR, `dateTime` TIMESTAMP(3),
    extra VARCHAR, WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND);
"""
RENAMED = {
    "ts": "dateTime",
    "email": "emailAddress",
    "credit_card": "creditCard",
    "item": "itemName",
    "initial_bid": "initialBid",
}
COUNT_CHAR = {"count_char": lambda text, char: text.str.count_matches(char, literal=True).cast(pl.Int64)}
WINDOWED = "time_bucket(INTERVAL '{0} seconds', dateTime) AS s, s + INTERVAL '{0} seconds' AS e"
HOPS = "(SELECT *, unnest(generate_series(0, 4)) * INTERVAL '2 seconds' AS back FROM bid)"
HOP = f"(SELECT auction, time_bucket(INTERVAL '2 seconds', dateTime) - back AS s, count(*) AS num FROM {HOPS} GROUP BY ALL)"
RANKS = """count(*) FILTER (price < 10000), count(*) FILTER (price >= 10000 AND price < 1000000),
    count(*) FILTER (price >= 1000000)"""
DISTINCT = """count(DISTINCT {0}), count(DISTINCT {0}) FILTER (price < 10000),
    count(DISTINCT {0}) FILTER (price >= 10000 AND price < 1000000), count(DISTINCT {0}) FILTER (price >= 1000000)"""
FIFTEEN = f"count(*), {RANKS}, {DISTINCT.format('bidder')}, {DISTINCT.format('auction')} FROM bid GROUP BY ALL"
DAY = "strftime(dateTime, '%Y-%m-%d')"
WON = "auction A, bid B WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires"
CHANNEL = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
RIGHT = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": "SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id "
    "WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')",
    "q4": f"SELECT category, trunc(avg(final))::BIGINT FROM (SELECT max(price) AS final, A.id, category FROM {WON} "
    "GROUP BY A.id, category) GROUP BY category",
    "q5": f"SELECT auction, num FROM {HOP} JOIN (SELECT s, max(num) AS most FROM {HOP} GROUP BY s) USING (s) "
    "WHERE num >= most",
    "q7": f"SELECT auction, price, bidder, dateTime, extra FROM bid JOIN (SELECT {WINDOWED.format(10)}, max(price) AS most "
    "FROM bid GROUP BY s) ON price = most WHERE dateTime BETWEEN e - INTERVAL '10 seconds' AND e",
    "q8": f"SELECT DISTINCT P.id, name, P.s FROM (SELECT id, name, {WINDOWED.format(10)} FROM person) P JOIN "
    f"(SELECT seller, {WINDOWED.format(10)} FROM auction) A ON P.id = A.seller AND P.s = A.s",
    "q9": "SELECT A.*, auction, bidder, price, B.dateTime, B.extra "
    f"FROM {WON} QUALIFY row_number() OVER (PARTITION BY A.id ORDER BY price DESC, B.dateTime, bidder) = 1",
    "q10": f"SELECT auction, bidder, price, dateTime, extra, {DAY}, strftime(dateTime, '%H:%M') FROM bid",
    "q11": "SELECT bidder, count(*), min(dateTime), max(dateTime) + INTERVAL '10 seconds' FROM (SELECT *, sum(fresh) OVER w "
    "AS n FROM (SELECT *, coalesce(dateTime >= lag(dateTime) OVER w + INTERVAL '10 seconds', true)::INT AS fresh FROM bid WINDOW w AS "
    "(PARTITION BY bidder ORDER BY dateTime)) WINDOW w AS (PARTITION BY bidder ORDER BY dateTime)) GROUP BY bidder, n",
    "q14": "SELECT auction, bidder, 0.908 * price AS p, CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime' "
    "WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END, dateTime, extra, "
    "len(extra) - len(replace(extra, 'c', '')) FROM bid WHERE p > 1000000 AND p < 50000000",
    "q15": f"SELECT {DAY}, {FIFTEEN}",
    "q16": f"SELECT channel, {DAY}, max(strftime(dateTime, '%H:%M')), {FIFTEEN}",
    "q17": f"SELECT auction, {DAY}, count(*), {RANKS}, min(price), max(price), trunc(avg(price))::BIGINT, sum(price)::BIGINT "
    "FROM bid GROUP BY ALL",
    "q13": "SELECT auction, bidder, price, dateTime, value FROM bid JOIN side_input ON auction % 10000 = key",
    "q18": "SELECT auction, bidder, price, channel, url, dateTime, extra FROM bid QUALIFY row_number() OVER "
    "(PARTITION BY bidder, auction ORDER BY dateTime DESC, price, channel, url, extra) = 1",
    "q19": "SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, bidder, channel, url, dateTime, extra) "
    "AS n FROM bid QUALIFY n <= 10",
    "q20": "SELECT auction, bidder, price, channel, url, B.dateTime, B.extra, itemName, description, initialBid, reserve, "
    "A.dateTime, expires, seller, category, A.extra FROM bid B JOIN auction A ON B.auction = A.id WHERE category = 10",
    "q21": "SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN "
    f"'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE {CHANNEL} END FROM bid WHERE {CHANNEL} <> '' OR lower(channel) IN "
    "('apple', 'google', 'facebook', 'baidu')",
    "q22": "SELECT auction, bidder, price, channel, split(url, '/')[4], split(url, '/')[5], split(url, '/')[6] FROM bid",
    "q23": "SELECT bidder, price, channel, url, B.extra, P.id, name, emailAddress, creditCard, city, state, P.extra, itemName, "
    "description, initialBid, reserve, A.dateTime, expires, seller, category, A.extra FROM bid B JOIN person P ON P.id = "
    "B.bidder JOIN auction A ON A.seller = B.bidder",
}
"""The same in DuckDB's words; what the queries leave open, the order of equal rows, is said. q12 asks the clock."""


@cache
def events(number: int) -> dict[str, pl.DataFrame]:
    parts = list(generator.generate(generator.Settings(events=number, seed=7)))
    found = {}
    for name in ("persons", "auctions", "bids"):
        rows = pl.concat([getattr(part, name) for part in parts]).drop("__round", strict=False)
        times = [column for column in ("ts", "expires") if column in rows.columns]
        rows = rows.with_columns(pl.col(times).cast(pl.Datetime("ms")))
        found[name.removesuffix("s")] = rows.rename(RENAMED, strict=False)
    keys = found["bid"].select(key=pl.col("auction") % 10_000).unique().filter(pl.col("key") % 3 == 0)
    return {"side_input": keys.with_columns(value=pl.format("v{}", "key"))} | found


def answered(query: str) -> pl.DataFrame:
    app = hr.App("nexmark")
    app.sql(TABLES)
    app.sql((HERE / "nexmark" / f"{query}.sql").read_text(), functions=COUNT_CHAR)
    with app.test() as t:
        used = {spec.id for spec in app.graph().streams.values()}
        for name, rows in events(FEWER.get(query, EVENTS)).items():
            if name in used:
                t.feed(name, rows)
        t.end()
        return t.read(f"nexmark_{query}")


def test_query_12_counts_bids_by_the_clock() -> None:
    found = answered("q12")
    counts = events(EVENTS)["bid"].group_by("bidder").len().sort("bidder")
    assert found.group_by("bidder").agg(pl.col("bid_count").sum()).sort("bidder").rows() == counts.rows()
    assert ((found["endtime"] - found["starttime"]).dt.total_seconds() == 10).all()


def rows_of(found: pl.DataFrame) -> list[tuple[object, ...]]:
    if CHANGE in found.columns:
        found = added_up(found)
    return sorted((tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in found.rows()), key=repr)


@pytest.mark.parametrize("query", list(RIGHT))
def test_a_query_as_published_gives_what_duckdb_gives(query: str) -> None:
    with duckdb.connect() as connection:
        for name, rows in events(FEWER.get(query, EVENTS)).items():
            connection.register(name, rows.to_arrow())
        right = connection.sql(RIGHT[query]).pl()
    found = answered(query)
    names = [name for name in found.columns if name != CHANGE]
    right = right.rename(dict(zip(right.columns, names, strict=True))).cast(
        {name: found.schema[name] for name in names}
    )
    assert right.height
    assert rows_of(found) == sorted(right.rows(), key=repr)
