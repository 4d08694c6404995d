"""Where the messages of a case are written, and where its results are read."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr
from headrace.core.errors import HeadraceError
from headrace.core.frame import Header, Kind, encode
from headrace.rows.ipc import encode_rows
from headrace.task.connections import Connections
from seams.apps import FACTS, INPUT, MORE, OUT, Declaring
from seams.factors import FROM_FILES, Case
from seams.messages import PORTIONS, Columns, Messages, Row

NEVER_TIMED = "side-table"
"""The step whose facts are read before anything else, so that all of them are there from the beginning."""
WITH_FACTS = ("join", "join-latest", "filled-table", "versions", NEVER_TIMED)


def frame(rows: Sequence[Row], columns: dict[str, pl.DataType]) -> pl.DataFrame:
    """Messages as a table."""
    return pl.DataFrame([[row[name] for name in columns] for row in rows], columns, orient="row")


class Inputs:
    """The inputs of a case as streams of the log or as files."""

    def __init__(self, case: Case, home: Path) -> None:
        self.case = case
        self.messages = Messages.of(case)
        self.columns = {INPUT: Columns(case).orders, FACTS: Columns(case).facts}
        self.names = (INPUT, FACTS) if case["step"] in WITH_FACTS else (INPUT,)
        self._home = home
        self._connections = Connections()
        home.mkdir(parents=True, exist_ok=True)
        if case["input"] == "log":
            for name in self.names:
                hr.streams.create_stream(name, self.messages.partitions, self.columns[name], home=home)
            self._system = Declaring(case, home).app.graph().streams[INPUT].system

    def parts(self, name: str, portion: int) -> list[list[Row]]:
        """The messages of a portion, by partition."""
        kept: list[list[list[Row]]] = getattr(self.messages, name)
        if name == INPUT or self.case["step"] != NEVER_TIMED:
            return kept[portion]
        portions = zip(*kept, strict=True) if portion == 0 else [()] * self.messages.partitions
        return [[row for part in parts for row in part] for parts in portions]

    def write(self, *portions: int) -> None:
        """Write these portions."""
        for name in self.names:
            for portion in portions:
                for partition, rows in enumerate(self.parts(name, portion)):
                    self._write(name, portion, partition, rows)

    def end(self) -> None:
        """End the streams, or move their event time on; files end by themselves."""
        if self.case["input"] in FROM_FILES:
            return
        for name in self.names:
            if self.case["end"] == "sealed":
                self._connections.admin(self._system).seal(name)
            elif (name, self.case["step"]) != (FACTS, NEVER_TIMED):
                for partition, rows in enumerate(self.messages.flushes()):
                    self._write(name, PORTIONS, partition, rows)

    def close(self) -> None:
        """Release what writes."""
        self._connections.close()

    def _write(self, name: str, portion: int, partition: int, rows: list[Row]) -> None:
        table = frame(rows, self.columns[name])
        if self.case["input"] == "log":
            producer = self._connections.record_producer(self._system)
            for piece in table.iter_slices(5):
                producer.send(name, partition, encode(Header(Kind.USER), encode_rows(piece)))
            producer.flush()
            return
        # The files of a partition come one after the other: of three partitions the first has files 0, 3 and 6.
        folder = self._home / name
        folder.mkdir(exist_ok=True)
        path = folder / f"{portion}-{partition}.{self.case['input']}"
        if self.case["input"] == "parquet":
            table.write_parquet(path)
        else:
            table.write_ndjson(path)


def results(case: Case, home: Path) -> list[Row]:
    """What the output of a case has, as committed readers see it."""
    schema = Declaring(case, home).app.graph().streams[OUT].schema
    columns = {} if schema is None else schema.columns
    return [{name: _of_type(value, columns[name]) for name, value in row.items()} for row in _results(case, home)]


def _of_type(value: Any, dtype: pl.DataType) -> Any:
    """A value of a place that writes times and decimals as texts."""
    if isinstance(value, str) and isinstance(dtype, pl.Datetime):
        return datetime.fromisoformat(value)
    return Decimal(value) if isinstance(value, str) and isinstance(dtype, pl.Decimal) else value


def _results(case: Case, home: Path) -> list[Row]:
    kind = case["output"]
    if kind in FROM_FILES:
        read = pl.read_parquet if kind == "parquet" else pl.read_ndjson
        return [row for path in sorted((home / "results").glob(f"*.{kind}")) for row in read(path).to_dicts()]
    if kind == "delta":
        return pl.read_delta(str(home / "delta")).to_dicts() if (home / "delta" / "_delta_log").exists() else []
    if kind.startswith("sql"):
        return _in_table(home / "results.db")
    return in_stream(home, OUT)


def in_stream(home: Path, name: str) -> list[Row]:
    """What has been committed to a stream."""
    try:
        return hr.streams.read_stream(name, home=home, committed=True).to_dicts()
    except HeadraceError:
        return []


def more(home: Path) -> list[int]:
    """What the output that a second version adds has."""
    return [row["n"] for row in in_stream(home, MORE)]


def _in_table(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'results'").fetchone() is None:
            return []
        return [dict(row) for row in database.execute("SELECT * FROM results")]
