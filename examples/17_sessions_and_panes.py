"""17. Sessions and panes: visits that end after ten idle seconds, and counts with results before their minute is over.

A session lasts from its first message to its last, plus the gap; a message out of order may join two sessions. Triggers
add early results. Messages that come after a window's end, within ``allowed_lateness``, correct it; those that come
even later go to an output.

It prints::

    visits
       1 - 22  3 pages, first /
      40 - 50  1 pages, first /bye
    views per minute
       0  early    2
       0  on_time  4
       0  late     5
      60  early    2
      60  on_time  2
    too late: /very-late
"""

from datetime import datetime, timedelta

import polars as pl

import headrace as hr

SCHEMA = {"member": pl.String, "url": pl.String, "ts": pl.Datetime("ms")}
NOON = datetime(2026, 1, 1, 12)
VISITS = [(1, "/"), (12, "/cart"), (8, "/item"), (40, "/bye")]  # without /item, which comes late, there would be three
MINUTES = [(1, "/"), (8, "/item"), (12, "/cart"), (40, "/bye"), (65, "/"), (30, "/late"), (95, "/"), (31, "/very-late")]


def visits() -> hr.App:
    app = hr.App("visits")
    views = app.input("views", SCHEMA, event_time="ts", lateness="5s")
    sessions = views.window(hr.session("10s"), key="member", id="visits")
    sessions.agg(pages=pl.len(), first=hr.aggregates.first("url")).send_to("out")
    return app


def per_minute() -> hr.App:
    app = hr.App("per-minute")
    views = app.input("views", SCHEMA, event_time="ts")
    views.window(
        hr.tumbling("1m"),
        key="member",
        id="per-minute",
        early=hr.triggers.after(2),
        allowed_lateness="30s",
        late_to="too-late",
    ).agg(views=pl.len()).send_to("out")
    return app


def message(second: int, url: str) -> dict[str, object]:
    return {"member": "ann", "url": url, "ts": NOON + timedelta(seconds=second)}


with visits().test() as t:
    for view in VISITS:
        t.feed("views", [message(*view)])
    t.end()
    print("visits")
    for row in t.read("out").to_dicts():
        start, end = ((row[bound] - NOON).seconds for bound in ("window_start", "window_end"))
        print(f"  {start:2} - {end}  {row['pages']} pages, first {row['first']}")

with per_minute().test() as t:
    for view in MINUTES:
        t.feed("views", [message(*view)])
    t.end()
    print("views per minute")
    for row in t.read("out").to_dicts():
        print(f"  {(row['window_start'] - NOON).seconds:2}  {row['pane']:7}  {row['views']}")
    print("too late:", *t.read("too-late")["url"])
