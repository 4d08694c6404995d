"""Compares what an app has committed with what was expected: nothing lost, nothing duplicated, nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from chaos.committed import committed_rows

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output compared with its expected rows. Column ``times`` of ``missing`` and ``surplus`` says how often."""

    stream: str
    rows: int
    held: int
    missing: pl.DataFrame
    surplus: pl.DataFrame

    @property
    def equal(self) -> bool:
        """Whether every row occurs as often as expected, and no frame is uncommitted."""
        return not (self.missing.height or self.surplus.height or self.held)

    def describe(self) -> str:
        """Return one line if equal, else also the rows that differ."""
        if self.equal:
            return f"{self.stream}: {self.rows:,} rows, as expected"
        lines = [
            f"{self.stream}: {self.rows:,} rows; {self.missing.height:,} are missing, {self.surplus.height:,} occur "
            f"too often; {self.held:,} frames were never committed"
        ]
        for name, table in (("missing", self.missing), ("surplus", self.surplus)):
            lines += [f"  {name}: {row}" for row in table.head(_SHOWN).iter_rows(named=True)]
        return "\n".join(lines)


def compare(stream: str, got: pl.DataFrame, expected: pl.DataFrame, held: int = 0) -> Comparison:
    """Compare the rows as multisets. ``held`` is the number of uncommitted frames."""
    columns = expected.columns
    counted = (
        got.select(columns)
        .group_by(columns)
        .agg(got=pl.len().cast(pl.Int64))
        .join(
            expected.group_by(columns).agg(due=pl.len().cast(pl.Int64)),
            on=columns,
            how="full",
            coalesce=True,
            nulls_equal=True,
        )
        .with_columns(times=pl.col("due").fill_null(0) - pl.col("got").fill_null(0))
    )
    missing = counted.filter(pl.col("times") > 0).select(*columns, "times").sort(columns)
    surplus = counted.filter(pl.col("times") < 0).select(*columns, times=-pl.col("times")).sort(columns)
    return Comparison(stream, got.height, held, missing, surplus)


def judge_database(path: Path, table: str, due: pl.DataFrame) -> Comparison:
    """Compare a table of a SQLite database."""
    with closing(sqlite3.connect(path)) as connection:
        columns = ", ".join(f'"{name}"' for name in due.columns)
        cursor = connection.execute(f'SELECT {columns} FROM "{table}"')
        rows = pl.DataFrame(cursor.fetchall(), schema=due.schema, orient="row")
    return compare(f"{table} in {path.name}", rows, due)


def judge(home: Path, expected: Mapping[str, pl.DataFrame]) -> list[Comparison]:
    """Compare all outputs."""
    found = []
    for stream, due in expected.items():
        rows, held = committed_rows(home, stream)
        found.append(compare(stream, rows, due, held))
    return found
