"""23. Startpoints: read part of an input again, or skip part of it, whatever the app has committed.

Each run reads what is new in a folder. A startpoint makes the second run reread what happened from 12:00:02 on, and
another makes the third run skip what is there when it starts. On the command line, the first is
`headrace startpoint set pipeline.py views --time 2026-01-01T12:00:02`; for the log there are `--ago`, `--offset`,
`--oldest` and `--upcoming`, too, and `--apply` for a running app.

It prints::

    first run   /a /b /c /d
    back, 2 messages
    second run  /a /b /c /d /c /d
    third run   /a /b /c /d /c /d
    fourth run  /a /b /c /d /c /d /f
    released, released
"""

from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

VIEWS = {"page": pl.String, "ts": pl.Datetime("ms")}
NOON = datetime(2026, 1, 1, 12)


def declare(folder: Path) -> hr.App:
    app = hr.App("page-views", home=str(folder / "home"))
    files = hr.io.files(folder / "views", format="parquet", partitions=1, new_files="next_run")
    app.input("views", VIEWS, event_time="ts", system=files).send_to(app.output("seen", partitions=1))
    return app


def put(folder: Path, name: str, first: int, *pages: str) -> None:
    """Add a file of views, one a second."""
    times = [NOON + timedelta(seconds=first + n) for n in range(len(pages))]
    pl.DataFrame({"page": pages, "ts": times}, VIEWS).write_parquet(folder / "views" / name)


def run(folder: Path, title: str) -> None:
    declare(folder).run(local=True, progress=False)
    seen = hr.streams.read_stream("seen", home=folder / "home")
    print(f"{title:11}", *seen["page"])


def show(answer: hr.startpoints.SetAnswer) -> None:
    for move in answer.moves:
        print(f"{move.direction}, {move.messages} message{'s' if move.messages != 1 else ''}")


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "views").mkdir()
        put(folder, "1.parquet", 0, "/a", "/b")
        put(folder, "2.parquet", 2, "/c", "/d")
        run(folder, "first run")

        points = hr.startpoints.open_startpoints(declare(folder))
        show(points.set("views", hr.startpoints.at("2026-01-01T12:00:02")))
        run(folder, "second run")

        put(folder, "3.parquet", 4, "/e")
        points.set("views", hr.startpoints.upcoming())
        run(folder, "third run")
        put(folder, "4.parquet", 5, "/f")
        run(folder, "fourth run")
        print(*(state.state for state in points.list(done=True)), sep=", ")
