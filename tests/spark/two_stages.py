"""An app of two stages as a user would write it, its input, and its expected results, computed by Polars alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl

import headrace as hr
from chaos.committed import committed_rows
from chaos.deployment import Deployment
from chaos.verdict import compare

SOURCE = """
import sys
import polars as pl
import headrace as hr

app = hr.App({app!r}, home={home!r}, checkpoint_interval="300ms")
orders = app.input(
    "orders", {{"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64, "ts": pl.Int64}}, event_time="ts"
)

def checked(row):
    if row["order"] == {broken}:
        raise ValueError("this order is broken")
    return row["amount"] > 0

by_member = orders.filter(checked).partition_by("member", id="by-member", partitions=2)
by_member.select("order", "member").send_to(app.output({app!r} + "-seen", partitions=2))
per_second = by_member.window(hr.tumbling("1s"), key="member", id="per-second")
totals = per_second.agg(orders=pl.len(), amount=pl.col("amount").sum())
totals.send_to(app.output({app!r} + "-totals", partitions=2))

if __name__ == "__main__":
    app.run(master=sys.argv[1] if len(sys.argv) > 1 else None, progress=False)
"""
COLUMNS = {"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64, "ts": pl.Int64}
HEADRACE = [sys.executable, "-m", "headrace.operate.cli.main"]


class TwoStages:
    """The app in a home folder of its own. Orders are numbered; their times rise by one millisecond each."""

    def __init__(self, folder: Path, app: str = "two-stages", home: Path | None = None, broken: int = -1) -> None:
        self.app = app
        self.folder = folder
        self.home = home or folder / "home"
        self.file = folder / f"{app}.py"
        self.file.write_text(SOURCE.format(app=app, home=str(self.home), broken=broken))
        hr.streams.create_stream("orders", 2, COLUMNS, home=self.home)
        self._writer = hr.streams.StreamWriter("orders", home=self.home)
        self._written: list[pl.DataFrame] = []
        self._runs = 0

    def feed(self, orders: int) -> None:
        """Write this many orders, in batches of at most a thousand."""
        begin = sum(rows.height for rows in self._written)
        for first in range(begin, begin + orders, 1000):
            number = pl.int_range(first, min(first + 1000, begin + orders), eager=True)
            rows = pl.DataFrame(
                {"order": number, "member": number * 7919 % 97, "amount": number * 31 % 50 - 5, "ts": number}
            )
            self._writer.write(rows)
            self._written.append(rows)

    def share_input(self, other: TwoStages) -> None:
        """Both apps read the input of the other one."""
        self._written = other._written

    def seal(self) -> None:
        self._writer.seal()

    def deploy(self, *command: str) -> Deployment:
        """Start it with this command, in a terminal session of its own."""
        self._runs += 1
        return Deployment(command, self.home, self.app, self.folder / f"{self.app}-run-{self._runs}")

    def python(self, master: str = "local[2]") -> list[str]:
        return [sys.executable, str(self.file), master]

    def headrace_run(self, *options: str) -> list[str]:
        return [*HEADRACE, "run", str(self.file), "--quiet", "--master", "local[2]", *options]

    def without_spark(self, *options: str) -> list[str]:
        return [*HEADRACE, "run", str(self.file), "--quiet", "--local", *options]

    def spark_submit(self) -> list[str]:
        return [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", str(self.file)]

    def assert_exact(self) -> None:
        """Check that the committed results are those that Polars computes from the same orders, row by row."""
        kept = pl.concat(self._written).filter(pl.col("amount") > 0)
        totals = (
            kept.group_by("member", window_start=pl.col("ts") // 1000 * 1000)
            .agg(orders=pl.len().cast(pl.Int64), amount=pl.col("amount").sum())
            .with_columns(window_end=pl.col("window_start") + 1000)
        )
        for output, due in (("seen", kept.select("order", "member")), ("totals", totals)):
            rows, held = committed_rows(self.home, f"{self.app}-{output}")
            comparison = compare(output, rows, due, held)
            assert comparison.equal, comparison.describe()


def spark_home() -> Path:
    command = [sys.executable, "-m", "pyspark.find_spark_home"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command until it ends."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [*HEADRACE, *arguments], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
