"""31. SQL: the statements of an app, beside its Python or without any.

``CREATE TABLE`` says what a stream's columns and its event time are, and for other systems where it is. ``INSERT INTO``
writes a query. A query over windows writes each window's rows once, when it ends; one over all rows so far writes how
its result changes. A view is computed once, however many queries read it. What ``app.sql`` returns is a stream like any
other. The same statements in a file are an app by themselves: ``headrace run revenue.sql``.

It prints::

    2 lamps at 12:00, 30.0 euros
    1 desks at 12:00, 90.0 euros
    1 lamps at 12:10, 10.0 euros
    ann has paid 110.0 euros so far
    bob has paid 20.0 euros so far
    a large one: order 2
    there is no column euro (line 1, column 18: euro); did you mean euros?
    the file says: Bergen 20.0, Oslo 110.0
"""

from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import headrace as hr
from headrace.errors import HeadraceError

TABLES = """
CREATE TABLE orders (id BIGINT, member STRING, article STRING, euros DOUBLE, at TIMESTAMP,
    WATERMARK FOR at AS at - INTERVAL '1' MINUTE);
CREATE TABLE members (member STRING, city STRING);
"""
QUERIES = """
CREATE VIEW paid AS SELECT *, plural(article) AS articles FROM orders WHERE euros > 0;

INSERT INTO per_article
SELECT articles, window_start, count(*) AS n, sum(euros) AS euros
FROM TABLE(TUMBLE(TABLE paid, DESCRIPTOR(at), INTERVAL '10' MINUTE))
GROUP BY articles, window_start, window_end;

INSERT INTO per_member SELECT member, sum(euros) AS euros FROM paid GROUP BY member;
"""
PER_CITY = """
INSERT INTO per_city
SELECT m.city, sum(o.euros) AS euros FROM orders o JOIN members m ON o.member = m.member GROUP BY m.city;
"""
ORDERS = [
    {"id": 1, "member": "ann", "article": "lamp", "euros": 20.0, "at": datetime(2026, 1, 1, 12, 1)},
    {"id": 2, "member": "ann", "article": "desk", "euros": 90.0, "at": datetime(2026, 1, 1, 12, 4)},
    {"id": 3, "member": "bob", "article": "lamp", "euros": 10.0, "at": datetime(2026, 1, 1, 12, 5)},
    {"id": 4, "member": "bob", "article": "lamp", "euros": 10.0, "at": datetime(2026, 1, 1, 12, 12)},
    {"id": 5, "member": "eve", "article": "lamp", "euros": 0.0, "at": datetime(2026, 1, 1, 12, 13)},
]
MEMBERS = [{"member": "ann", "city": "Oslo"}, {"member": "bob", "city": "Bergen"}]

app = hr.App("orders")
app.sql(TABLES)
app.sql(QUERIES, functions={"plural": lambda article: article + "s"})
large = app.sql("SELECT id FROM paid WHERE euros > 50")
assert large is not None
large.map(lambda row: {"text": f"a large one: order {row['id']}"}, schema={"text": str}).send_to("large")

with app.test() as test:
    test.feed("orders", ORDERS)
    test.end()
    for row in test.read("per_article").sort("window_start", "n", descending=[False, True]).to_dicts():
        print(f"{row['n']} {row['articles']} at {row['window_start']:%H:%M}, {row['euros']} euros")
    for row in test.read("per_member").sort("member").to_dicts():
        print(f"{row['member']} has paid {row['euros']} euros so far")
    print(test.read("large").item())

try:
    app.sql("SELECT id, -1 * (euro) AS refund FROM orders")
except HeadraceError as error:
    print(f"{error.message.splitlines()[0].removeprefix('sql: ')}; {error.hint}")

with TemporaryDirectory() as folder:
    file = Path(folder) / "per-city.sql"
    file.write_text(TABLES + PER_CITY)
    with hr.sql_app(file).test() as test:
        test.feed("members", MEMBERS)
        test.feed("orders", ORDERS)
        test.end()
        sums = test.read("per_city").sort("city").select("city", "euros").rows()
        print(f"the file says: {', '.join(f'{city} {euros}' for city, euros in sums)}")
