"""8. Files in and out: Parquet, JSON lines or CSV as a bounded input, and as an output.

Files end, so an app over files ends by itself. An output folder gets new files with each checkpoint.

It prints::

    {'member': 'ann', 'window_start': 0, 'window_end': 60000, 'bytes': 300}
    {'member': 'bob', 'window_start': 0, 'window_end': 60000, 'bytes': 50}
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

with TemporaryDirectory() as folder:
    data, report = Path(folder, "downloads"), Path(folder, "report")
    data.mkdir()
    pl.DataFrame({"member": ["ann", "bob"], "bytes": [100, 50], "ts": [1_000, 2_000]}).write_parquet(data / "1.parquet")
    pl.DataFrame({"member": ["ann"], "bytes": [200], "ts": [3_000]}).write_parquet(data / "2.parquet")

    app = hr.App("report", home=f"{folder}/home")
    downloads = app.input(
        "downloads",
        {"member": pl.String, "bytes": pl.Int64, "ts": pl.Int64},
        event_time="ts",
        system=hr.io.files(data / "*.parquet", partitions=2),
    )
    (
        downloads.partition_by("member", id="by-member")
        .window(hr.tumbling("1m"), key="member", id="per-minute")
        .agg(bytes=hr.sum("bytes"))
        .send_to(app.output("report", system=hr.io.files(report, format="jsonl")))
    )
    app.run(local=True, progress=False)

    for row in pl.concat([pl.read_ndjson(file) for file in report.rglob("*.jsonl")]).sort("member").to_dicts():
        print(row)
