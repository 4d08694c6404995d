"""30. A connector of your own: read a feed over HTTP and write into a table, each row exactly once.

The package ``feed_connector`` beside this file has a source and a sink, of five methods each. Headrace does the rest.
The server here fails once in a while, and two checks say whether the contracts are kept.

It prints::

    {'member': 'ann', 'views': 4}
    {'member': 'bob', 'views': 2}
    {'member': 'eve', 'views': 3}
    the feed failed 3 times
    the source and the sink keep their contracts
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from sqlite3 import connect
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import polars as pl
from feed_connector import Feed, Table

import headrace as hr
from headrace.kit.contracts import check_system, check_target

VIEWS = {"de": ["ann", "bob", "ann", "eve", "ann"], "at": ["eve", "bob", "ann", "eve"]}
NOON = "2026-01-01T12:00:00"


class FeedServer(BaseHTTPRequestHandler):
    failures = 3
    failed = 0

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        start = int(asked.query.removeprefix("from="))
        if start and FeedServer.failed < FeedServer.failures:
            FeedServer.failed += 1
            self.send_error(503)
            return
        members = VIEWS[asked.path.strip("/")]
        page = {
            "rows": [{"member": m, "ts": NOON} for m in members[start : start + 2]],
            "last": start + 2 >= len(members),
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(page).encode())

    def log_message(self, *_: object) -> None:
        pass


def results() -> list[dict]:
    connection = connect(file)
    rows = [json.loads(row) for (row,) in connection.execute("SELECT row FROM results")]
    connection.close()
    return rows


with TemporaryDirectory() as folder, ThreadingHTTPServer(("127.0.0.1", 0), FeedServer) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    file = Path(folder, "results.db")
    feed = Feed(f"http://127.0.0.1:{server.server_port}", ("de", "at"))

    app = hr.App("members", home=f"{folder}/home")
    views = app.input("views", {"member": pl.String, "ts": pl.Datetime("ms")}, event_time="ts", system=feed)
    counts = views.partition_by("member").window(hr.tumbling("1m"))
    counts.agg(views=pl.len()).select("member", "views").send_to(app.output("counts", system=Table(file)))
    app.run(local=True, progress=False)

    for row in sorted(results(), key=lambda row: row["member"]):
        print(row)
    print("the feed failed", FeedServer.failed, "times")

    file = Path(folder, "checked.db")
    columns = {"writer": pl.String, "version": pl.Int64, "n": pl.Int64}
    check_system(lambda: feed)
    check_target(lambda: Table(file), lambda: pl.DataFrame(results(), columns))
    print("the source and the sink keep their contracts")
    server.shutdown()
