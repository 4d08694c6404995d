"""A connector of one's own: pages of JSON over HTTP as a source, and a table of JSON in SQLite as a sink."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import polars as pl

from headrace.systems.small import Sink, SinkWriter, Source, SourcePartition


class FeedPartition(SourcePartition):
    def __init__(self, url: str, position: int) -> None:
        self.url, self.at = url, position

    def next_batch(self) -> list[dict] | None:
        with urlopen(f"{self.url}?from={self.at}", timeout=10) as answer:  # its errors are OSErrors: tried again
            page = json.load(answer)
        self.at += len(page["rows"])
        return None if page["last"] and not page["rows"] else page["rows"]

    def position(self) -> int:
        return self.at

    def close(self) -> None:
        """Nothing stays open between two pages."""


@dataclass(frozen=True)
class Feed(Source):
    url: str
    topics: tuple[str, ...]
    bounded = True  # each topic has a last page

    def partitions(self) -> tuple[str, ...]:
        return self.topics

    def open(self, partition: str, position: int) -> FeedPartition:
        return FeedPartition(f"{self.url}/{partition}", position)


class TableWriter(SinkWriter):
    def __init__(self, file: Path, writer: str) -> None:
        self.db = sqlite3.connect(file, timeout=30, isolation_level=None)
        self.writer, self.rows = writer, []

    def position(self) -> int:
        found = self.db.execute("SELECT version FROM positions WHERE writer = ?", [self.writer]).fetchone()
        return found[0] if found else -1

    def write(self, rows: pl.DataFrame) -> None:
        self.rows += [[line] for line in rows.write_ndjson().splitlines()]

    def commit(self, version: int) -> None:
        with self.db:  # commits, or rolls back after an error
            self.db.execute("BEGIN IMMEDIATE")
            if self.position() < version:  # else another copy of the task was quicker
                self.db.executemany("INSERT INTO results VALUES (?)", self.rows)
                self.db.execute("REPLACE INTO positions VALUES (?, ?)", [self.writer, version])
        self.rows = []

    def close(self) -> None:
        self.db.close()


@dataclass(frozen=True)
class Table(Sink):
    file: Path
    retry_on = (OSError, sqlite3.OperationalError)  # such as a database that is locked

    def open(self, writer: str) -> TableWriter:
        return TableWriter(self.file, writer)

    def create(self, columns: object) -> None:
        with closing(sqlite3.connect(self.file)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS results (row TEXT)")
            db.execute("CREATE TABLE IF NOT EXISTS positions (writer TEXT PRIMARY KEY, version INTEGER)")
