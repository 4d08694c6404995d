"""The data that all contestants read: page views in Parquet, generated from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

URLS = np.array(["/", "/search", "/cart", "/item", "/health"])
PER_MS = 100
"""Messages a millisecond of event time: ten million are 100 s."""

SCHEMA = {"member": pl.String, "url": pl.String, "ts": pl.Int64}


def page_views(folder: Path, messages: int, keys: int, files: int) -> Path:
    """Write ``messages`` page views of ``keys`` members into ``files`` Parquet files, which share event time evenly.

    Event time runs through each file in the same way, with up to 500 ms of disorder, so a reader that takes the
    files one by one sees time go back: contestants read them side by side, as partitions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(11)
    each = messages // files
    for number in range(files):
        index = np.arange(each)
        rows = pl.DataFrame(
            {
                "member": "member-" + pl.Series(random.integers(0, keys, each)).cast(pl.String),
                "url": URLS[random.integers(0, len(URLS), each)],
                "ts": 1_700_000_000_000 + index * files // PER_MS - random.integers(0, 500, each),
            }
        )
        rows.write_parquet(folder / f"views-{number:03}.parquet", row_group_size=1 << 17)
    return folder
