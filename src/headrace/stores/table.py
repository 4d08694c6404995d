"""Rows under a key, column by column: a key-value store seen as a table, for operators that work on whole batches.

The bytes are those of ``ordered_keys`` and ``row_values``. Which columns the rows were written with is kept in the
store itself, under a key that no row can have: a numbered list of layouts, which grows by one when the columns change.
A column that was added reads as null in older rows, one that was taken away is passed over; a type that has
changed, or other key columns, are an error.

``RowReader`` reads from anything that ``Reads``: a store on its own thread, ``Committed`` on any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec
import numpy as np
import polars as pl

from headrace.core.errors import CorruptLogError, DataError, DeclarationError
from headrace.serdes.dtypes import Columns, columns_from_json
from headrace.serdes.ipc import concat_rows
from headrace.stores.base import StateStore
from headrace.stores.conform import check_key, check_versions, in_order
from headrace.stores.keyvalue import KeyValueStore, Reads
from headrace.stores.ordered_keys import KeyEncoding
from headrace.stores.row_values import LAYOUTS_MAX, ValueEncoding, layouts_of

SCANNED_ROWS = 8192

_LAYOUTS_KEY = b"\xff"  # a row's key begins with 0 or 1
ROWS_END = b"\x02"
"""Behind every row's key."""
_LAYOUTS_FORMAT = 1


class RowTable(Protocol):
    """Rows under a key, wherever they lie; ``store`` is the task's to checkpoint."""

    key: Columns
    values: Columns

    @property
    def store(self) -> StateStore:
        """What keeps the rows."""
        ...

    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        """See ``RowReader``."""
        ...

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Set the rows; of equal keys the last one counts. Columns that the table doesn't have are passed over."""
        ...

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Remove the row of each key, where there is one."""
        ...

    def check(self) -> None:
        """Raise unless rows that were kept before have this key, and these types of columns."""
        ...

    def entries(self) -> int:
        """How many rows there are, roughly."""
        ...

    def advance(self, now_ms: int) -> None:
        """Say what time it is; it decides what has expired."""
        ...

    def sweep(self, now_ms: int, budget: int) -> int:
        """Remove what has expired among the next ``budget`` rows; how many it was."""
        ...


class _Layouts(msgspec.Struct, frozen=True, kw_only=True):
    format: int = _LAYOUTS_FORMAT
    key: list[tuple[str, Any]]
    layouts: list[list[tuple[str, Any]]]


_LAYOUTS_DECODER = msgspec.json.Decoder(_Layouts)


class RowReader:
    """Reads rows of ``columns``, some of which are the key."""

    def __init__(self, reads: Reads, columns: Columns, key: Sequence[str]) -> None:
        unknown = [name for name in key if name not in columns]
        if unknown or len(set(key)) != len(key):
            raise DeclarationError(
                f"store {reads.id!r}: the key {list(key)} isn't a choice of the columns {list(columns)}",
                hint="name each key column once, as it stands in the schema",
            )
        self._reads = reads
        self._id = reads.id
        self.key: Columns = {name: columns[name] for name in key}
        self.values: Columns = {name: dtype for name, dtype in columns.items() if name not in key}
        self._keys = KeyEncoding(self.key)
        self._empty = pl.DataFrame(schema=dict(self.values))
        self._written: bytes | None = None
        self._layouts: list[ValueEncoding] = []

    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        """The other columns for each row of ``keys``, in its order; null where there is no such row.

        ``found`` names a column to add, which says whether there is one.
        """
        check_types(self._id, keys, self.key)
        values = self._reads.get_many(self._keys.encode(keys))
        there = [value for value in values if value is not None]
        rows = self._decode(there)
        is_there = np.ones(len(values), np.bool_)
        if len(there) < len(values):
            is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
            rows = _spread(rows, is_there)
        return rows if found is None else rows.with_columns(pl.Series(found, is_there))

    def scan(
        self,
        *,
        start: Mapping[str, Any] | None = None,
        stop: Mapping[str, Any] | None = None,
        prefix: Mapping[str, Any] | None = None,
        reverse: bool = False,
        batch_rows: int = SCANNED_ROWS,
    ) -> Iterator[pl.DataFrame]:
        """All columns of the rows from ``start`` up to, but without ``stop``, in the order of keys, or against it.

        Both name values of the first key columns, or of all; ``prefix`` does so, too, and wants rows that have them.
        """
        low, high = key_range(self._id, self.key, start, stop, prefix)
        entries = self._reads.range(low, high, reverse=reverse) if low < high else iter(())
        while batch := list(islice(entries, batch_rows)):
            yield self.rows_of(batch)

    def rows_of(self, entries: Sequence[tuple[bytes, bytes]]) -> pl.DataFrame:
        """All columns of entries that were read from the store; there is at least one."""
        keys, values = zip(*entries, strict=True)
        rows = self._decode(values)
        return pl.concat([self._keys.decode(keys), rows], how="horizontal")

    # -- layouts

    def _decode(self, values: Sequence[bytes]) -> pl.DataFrame:
        """The values' columns, as they are declared now."""
        self._read_layouts()  # after the values: a commit writes both at once
        if not values:
            return self._empty
        numbers = layouts_of(values)
        present = np.unique(numbers).tolist()
        if present[-1] >= len(self._layouts):
            raise CorruptLogError(f"store {self._id!r}: a row has the unknown layout {present[-1]}")
        if len(present) == 1:
            return self._as_declared(self._layouts[present[0]].decode(values))
        parts, places = [], []
        for number in present:
            at = np.flatnonzero(numbers == number)
            places.append(at)
            parts.append(self._as_declared(self._layouts[number].decode([values[place] for place in at.tolist()])))
        return concat_rows(parts)[np.argsort(np.concatenate(places))]

    def _as_declared(self, rows: pl.DataFrame) -> pl.DataFrame:
        if rows.columns == list(self.values):
            return rows
        columns = [
            rows.get_column(name)
            if name in rows.columns
            else pl.Series(name, [None], dtype).new_from_index(0, rows.height)
            for name, dtype in self.values.items()
        ]
        return pl.DataFrame(columns) if columns else pl.DataFrame(height=rows.height)

    def _read_layouts(self) -> None:
        written = self._reads.get(_LAYOUTS_KEY)
        if written == self._written:
            return
        layouts = [] if written is None else self._parsed(written)
        self._written, self._layouts = written, layouts

    def _parsed(self, written: bytes) -> list[ValueEncoding]:
        known = _LAYOUTS_DECODER.decode(written)
        if known.format != _LAYOUTS_FORMAT:
            raise CorruptLogError(
                f"store {self._id!r}: layouts of format {known.format}; this Headrace reads {_LAYOUTS_FORMAT}",
                hint="they were written by a newer Headrace; upgrade this one",
            )
        check_key(self._id, columns_from_json(dict(known.key)), self.key)
        layouts = [columns_from_json(dict(layout)) for layout in known.layouts]
        for columns in layouts:
            self._check_layout(columns)
        return [ValueEncoding(columns, number) for number, columns in enumerate(layouts)]

    def _check_layout(self, columns: Columns) -> None:
        check_versions(self._id, columns, self.values)
        for name, dtype in self.values.items():
            if name in columns and columns[name] != dtype:
                raise DeclarationError(
                    f"store {self._id!r}: column {name!r} was kept as {columns[name]}, and is now declared as {dtype}",
                    hint="add a column of another name, or give the step another id (its state begins anew)",
                )


class TableStore(RowReader):
    """Reads and writes rows in a key-value store of its own: ``store``, which is the task's to checkpoint."""

    def __init__(self, store: KeyValueStore, columns: Columns, key: Sequence[str]) -> None:
        super().__init__(store, columns, key)
        self._store = store

    @property
    def store(self) -> KeyValueStore:
        """The store that is its own."""
        return self._store

    def entries(self) -> int:
        """How many rows there are, roughly."""
        return max(0, self.store.entries() - 1)  # the layouts are an entry as well

    def advance(self, now_ms: int) -> None:
        """Say what time it is; it decides what has expired."""
        self.store.advance(now_ms)

    def sweep(self, now_ms: int, budget: int) -> int:
        """Remove what has expired among the next ``budget`` rows; how many it was."""
        return self.store.sweep(now_ms, budget)

    def check(self) -> None:
        """See ``RowTable``."""
        self._read_layouts()

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Set the rows; of equal keys the last one counts. Columns that the table doesn't have are passed over."""
        check_types(self._id, rows, {**self.key, **self.values})
        if rows.height:
            encoding = self._writing()
            self.store.put_many(self._keys.encode(rows), encoding.encode(rows))

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Remove the row of each key, where there is one."""
        check_types(self._id, keys, self.key)
        self._read_layouts()
        self.store.delete_many(self._keys.encode(keys))

    def _writing(self) -> ValueEncoding:
        """The layout of the columns as they are declared; the first row of it makes it known."""
        self._read_layouts()
        for layout in reversed(self._layouts):
            if list(layout.columns.items()) == list(self.values.items()):
                return layout
        if len(self._layouts) == LAYOUTS_MAX:
            raise DeclarationError(
                f"store {self._id!r}: the columns have changed {LAYOUTS_MAX} times",
                hint="give the step another id (its state begins anew)",
            )
        columns = [*(layout.columns for layout in self._layouts), self.values]
        known = _Layouts(key=in_order(self.key), layouts=[in_order(layout) for layout in columns])
        self.store.put_many([_LAYOUTS_KEY], [msgspec.json.encode(known)], lasting=True)
        self._read_layouts()
        return self._layouts[-1]


def check_types(id_: str, rows: pl.DataFrame, columns: Columns) -> None:
    """Raise ``DataError`` unless the rows have these columns, for the table of that name."""
    for name, dtype in columns.items():
        found = rows.schema.get(name)
        if found != dtype:
            raise DataError(
                f"store {id_!r}: column {name!r} is {found or 'missing'}, where the table has {dtype}",
                hint=f"cast it before: pl.col({name!r}).cast(...)" if found else None,
            )


def key_range(
    id_: str,
    key: Columns,
    start: Mapping[str, Any] | None,
    stop: Mapping[str, Any] | None,
    prefix: Mapping[str, Any] | None,
) -> tuple[bytes, bytes]:
    """The bytes that keys lie between, from the first to without the second; see ``RowReader.scan``."""
    low = _bound(id_, key, start) if start else b""
    high = _bound(id_, key, stop) if stop else ROWS_END
    if prefix:
        first = _bound(id_, key, prefix)
        # Behind a column comes the end, or the next one's 0 or 1; in a string that goes on, FF.
        low, high = max(low, first), min(high, first + ROWS_END)
    return low, high


def _bound(id_: str, key: Columns, first: Mapping[str, Any]) -> bytes:
    names = list(key)[: len(first)]
    if set(first) != set(names):
        raise DeclarationError(f"store {id_!r}: {list(first)} aren't the first columns of the key {list(key)}")
    columns = {name: key[name] for name in names}
    row = pl.DataFrame({name: pl.Series([first[name]], dtype=dtype) for name, dtype in columns.items()})
    return KeyEncoding(columns).encode(row)[0]


def _spread(rows: pl.DataFrame, is_there: np.ndarray[Any, np.dtype[np.bool_]]) -> pl.DataFrame:
    """Give each True its row, in order, and each False nulls."""
    if not rows.width:
        return pl.DataFrame(height=len(is_there))
    if not rows.height:
        return rows.clear(len(is_there))
    place = pl.Series(np.cumsum(is_there) - 1)
    return rows.select(pl.all().gather(place.set(~pl.Series(is_there), None)))
