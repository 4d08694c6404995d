"""What a task's tables hold as of its last commit, for a thread other than the run loop's.

Nothing uncommitted can be seen, as the local database holds commits alone, and each answer is of one of them: the
database is pinned for it. Answers are bounded, in rows and in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from headrace.api.specs import TableSpec
from headrace.checkpoint.record import LOCAL_KEY, LocalCheckpoint
from headrace.core.errors import DataError, UsageError
from headrace.runtime.state import TaskState
from headrace.stores.conform import GONE
from headrace.stores.database import Part
from headrace.stores.keyvalue import Committed
from headrace.stores.table import ROWS_END, TableReader
from headrace.stores.versions import VERSION_COLUMNS

ROW_BYTES_MAX = 2 << 20

Entry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of keys, of the commit of this version (None: nothing has been committed yet).

    ``more``: the bounds of the answer left some out, which stand behind the key ``last``.
    """

    version: int | None
    rows: pl.DataFrame
    more: bool
    last: bytes


class CommittedTables:
    """The tables of one task. Any thread."""

    def __init__(self, state: TaskState, tables: Mapping[str, TableSpec], now_ms: Callable[[], int]) -> None:
        """``now_ms`` is the wall clock, which decides what has expired."""
        self._state = state
        self._tables = tables
        self._now_ms = now_ms

    def get(self, table: str, keys: Sequence[bytes], bytes_max: int) -> Page:
        """The rows of these keys, as they are stored, of those that are there."""
        if not all(b"\x00" <= key < ROWS_END for key in keys):
            raise UsageError(f"one of {len(keys)} keys is no key of table {table!r}")
        ordered = sorted(set(keys))

        def found(reads: Committed) -> Iterator[Entry]:
            values = reads.get_many(ordered)
            return ((key, value) for key, value in zip(ordered, values, strict=True) if value is not None)

        return self._page(table, found, len(ordered), bytes_max)

    def scan(self, table: str, low: bytes, high: bytes, rows_max: int, bytes_max: int) -> Page:
        """The first rows with ``low <= key < high``; an empty ``high`` is no bound."""
        end = min(high or ROWS_END, ROWS_END)
        return self._page(table, lambda reads: reads.range(low, end) if low < end else iter(()), rows_max, bytes_max)

    def _page(self, table: str, entries: Callable[[Committed], Iterator[Entry]], rows_max: int, bytes_max: int) -> Page:
        spec = self._tables.get(table)
        if spec is None or spec.schema is None:
            raise UsageError(f"there is no table {table!r} here", hint=f"there is: {', '.join(self._tables) or 'none'}")
        if spec.kind == "remote":
            raise UsageError(f"table {table!r} is remote: its task has none of its rows", hint="ask whoever keeps them")
        if spec.storage != "disk":
            raise UsageError(
                f"table {table!r} is kept in {spec.storage}, where its task alone can read it",
                hint="keep it on disk, or send what is to be asked for to another table too",
            )
        columns: dict[str, pl.DataType] = {
            **spec.schema.columns,
            **({} if spec.versions_ms is None else VERSION_COLUMNS),
        }
        with self._state.committed() as pin:
            reads = Committed(table, Part(pin, table), ttl_ms=spec.ttl_ms)
            reads.advance(self._now_ms())
            reader = TableReader(reads, columns, spec.key)
            taken, more = _bounded(entries(reads), rows_max, bytes_max)
            rows = reader.rows_of(taken) if taken else pl.DataFrame(schema={**reader.key, **reader.values})
            commit = pin.get(LOCAL_KEY)
        if spec.versions_ms is not None:
            # The newest version of each row; one that says that it is gone is none.
            rows = rows.filter(~pl.col(GONE).fill_null(False)).drop(VERSION_COLUMNS)
        version = None if commit is None else LocalCheckpoint.decode(commit).version
        return Page(version, rows, more, taken[-1][0] if more else b"")


def _bounded(entries: Iterator[Entry], rows_max: int, bytes_max: int) -> tuple[list[Entry], bool]:
    """As many entries as may be told, but one at least; whether there are more."""
    taken: list[Entry] = []
    size = 0
    for entry in entries:
        weight = len(entry[0]) + len(entry[1])
        if taken and (len(taken) >= rows_max or size + weight > bytes_max):
            return taken, True
        if weight > ROW_BYTES_MAX:
            raise DataError(f"a row of {weight} bytes is too large to be told; {ROW_BYTES_MAX} bytes are read at most")
        taken.append(entry)
        size += weight
    return taken, False
