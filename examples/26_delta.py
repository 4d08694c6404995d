"""26. A Delta table: results are added exactly once, without a JVM, and read like any other Delta table.

Each checkpoint becomes one commit, which also stores how far the app has got: the next run adds what is new, and
nothing twice. Small files are compacted by a job of your own, here between two runs. Spark reads the same folder:
``spark.read.format("delta").load("lake/views")``.

It prints::

    run 1: 2 rows in 1 files
    run 2: 3 rows in 2 files
    compacted: 3 rows in 1 files
    run 3: 5 rows in 2 files
    ann {'2026-01-01': 2, '2026-01-02': 1}
    bob {'2026-01-01': 1, '2026-01-02': 1}
"""

from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from deltalake import DeltaTable

import headrace as hr

VIEWS = {"member": pl.String, "ts": pl.Datetime("ms")}
RUNS = [
    [("ann", datetime(2026, 1, 1, 12)), ("bob", datetime(2026, 1, 1, 13))],
    [("ann", datetime(2026, 1, 1, 14))],
    [("ann", datetime(2026, 1, 2, 12)), ("bob", datetime(2026, 1, 2, 13))],
]


def declare(folder: str) -> hr.App:
    app = hr.App("views", home=f"{folder}/home")
    views = app.input("views", VIEWS, system=hr.io.files(f"{folder}/inbox/*.parquet", new_files="next_run"))
    lake = hr.io.delta(f"{folder}/lake/views", partition_by="day")
    views.with_columns(day=pl.col("ts").dt.date()).send_to(app.output("lake", system=lake))
    return app


def show(what: str, table: DeltaTable) -> None:
    print(f"{what}: {table.count()} rows in {len(table.file_uris())} files")


with TemporaryDirectory() as folder:
    inbox, path = Path(folder, "inbox"), Path(folder, "lake/views")
    inbox.mkdir()
    for run, rows in enumerate(RUNS, start=1):
        pl.DataFrame(rows, VIEWS, orient="row").write_parquet(inbox / f"{run}.parquet")
        declare(folder).run(local=True, progress=False)
        table = DeltaTable(path)
        show(f"run {run}", table)
        if run == 2:
            table.optimize.compact()
            show("compacted", table)

    found = pl.read_delta(str(path)).group_by("member", pl.col("day").cast(pl.String)).len().sort("member", "day")
    for member in ("ann", "bob"):
        print(member, dict(found.filter(member=member).select("day", "len").iter_rows()))
