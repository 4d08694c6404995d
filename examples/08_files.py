"""8. Files in and out: Parquet, JSON lines or CSV as a bounded input, and as an output.

Files end, so an app over files ends by itself. An output folder gets new files with each checkpoint.

It prints::

    {'member': 'ann', 'window_start': '2026-01-01T12:00:00.000', 'bytes': 300}
    {'member': 'bob', 'window_start': '2026-01-01T12:00:00.000', 'bytes': 50}
"""

from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

SCHEMA = {"member": pl.String, "bytes": pl.Int64, "ts": pl.Datetime("ms")}
NOON = datetime(2026, 1, 1, 12)

with TemporaryDirectory() as folder:
    data, report = Path(folder, "downloads"), Path(folder, "report")
    data.mkdir()
    pl.DataFrame([("ann", 100, NOON), ("bob", 50, NOON)], SCHEMA, orient="row").write_parquet(data / "1.parquet")
    pl.DataFrame([("ann", 200, NOON.replace(second=3))], SCHEMA, orient="row").write_parquet(data / "2.parquet")

    app = hr.App("report", home=f"{folder}/home")
    files = hr.io.files(data / "*.parquet", partitions=2)
    downloads = app.input("downloads", SCHEMA, event_time="ts", system=files)
    (
        downloads.partition_by("member")
        .window(hr.tumbling("1m"))
        .agg(pl.col("bytes").sum())
        .drop("window_end")
        .send_to(app.output("report", system=hr.io.files(report, format="jsonl")))
    )
    app.run(local=True, progress=False)

    for row in pl.concat([pl.read_ndjson(file) for file in report.rglob("*.jsonl")]).sort("member").to_dicts():
        print(row)
