"""Backfills an app on a cluster of its own; the first worker that sees a certain message kills its executor.

``backfill_program.py HOME``; the file HOME/killed says that it has happened.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import polars as pl

import headrace as hr

VIEWS = {"id": pl.Int64(), "member": pl.String(), "ts": pl.Int64()}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def declare(home: Path, kill_at: int = -1) -> hr.App:
    killed = home / "killed"

    def deadly(frame: pl.DataFrame) -> pl.DataFrame:
        if frame["id"].is_in([kill_at]).any() and not killed.exists():
            killed.touch()
            daemon = parent_of(os.getpid())  # Spark forks workers from a daemon, which an executor has started
            os.kill(parent_of(daemon), signal.SIGKILL)
        return frame

    app = hr.App("visits", home=home)
    views = app.input("views", VIEWS, event_time="ts", lateness="20s")
    by_member = views.partition_by("member", id="by-member", partitions=2)
    counts = by_member.map_batches(deadly, VIEWS).window(hr.tumbling("1m"), key="member", id="per-minute")
    counts.agg(n=hr.count(), ids=hr.sum("id")).send_to(app.output("counts"))
    return app


if __name__ == "__main__":
    where = Path(sys.argv[1])
    declare(where, kill_at=77).backfill("now", master="local-cluster[2,1,1024]", progress=False)
