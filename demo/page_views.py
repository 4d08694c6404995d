"""The demo: page views counted per member and ten seconds, live, in two stages on local Spark.

A generator in another process writes page views for about 20 seconds, and the app counts them after a shuffle by
member. A line shows its progress; at the end comes a table of the results, checked against the generator's own count.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

import headrace as hr

GENERATOR = Path(__file__).with_name("generator.py")


def build(home: str) -> hr.App:
    """The app: filter, shuffle by member, count per ten seconds of event time."""
    app = hr.App("page-views-demo", home=home)
    views = app.input(
        "page-views",
        schema={"member": pl.String, "url": pl.String, "ts": pl.Datetime("ms")},
        event_time="ts",
        lateness="1s",
    )
    (
        views.filter(pl.col("url") != "/health")
        .partition_by("member", partitions=4)
        .window(hr.tumbling("10s"))
        .agg(views=pl.len())
        .send_to(app.output("views-per-member", partitions=4))
    )
    return app


def show(results: pl.DataFrame, console: Console) -> None:
    """The ten busiest members."""
    top = (
        results.group_by("member")
        .agg(pl.col("views").sum(), pl.len().alias("windows"), pl.col("views").max().alias("most in 10 s"))
        .sort("views", "member", descending=[True, False])
        .head(10)
    )
    table = Table(title="the ten busiest members")
    for column in top.columns:
        table.add_column(column, justify="left" if column == "member" else "right")
    for row in top.iter_rows():
        table.add_row(*[f"{value:,}" if isinstance(value, int) else value for value in row])
    console.print(table)


def main() -> int:
    """Run the demo; 0 when every message was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the generator writes (default 20)")
    parser.add_argument("--rate", type=int, default=100_000, help="page views a second (default 100000)")
    parser.add_argument("--master", default="local[2]", help="Spark master (default local[2])")
    options = parser.parse_args()
    home = tempfile.mkdtemp(prefix="headrace-demo-")
    console = Console()
    generator: subprocess.Popen[str] | None = None
    try:
        hr.streams.create_stream(
            "page-views",
            partitions=4,
            home=home,
            schema={"member": pl.String, "url": pl.String, "ts": pl.Datetime("ms")},
        )
        command = [sys.executable, str(GENERATOR), home, str(options.seconds), str(options.rate)]
        generator = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        build(home).run(master=options.master)
        written, _ = generator.communicate(timeout=30)
        results = hr.streams.read_stream("views-per-member", home=home)
        show(results, console)
        counted, expected = int(results["views"].sum()), int(written.strip() or 0)
        console.print(f"{expected:,} page views written, {counted:,} counted")
        return 0 if counted == expected else 1
    finally:
        if generator is not None and generator.poll() is None:
            generator.terminate()
            generator.wait(timeout=10)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
