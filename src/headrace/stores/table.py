"""A table of rows by key, for operators that work on whole batches: on disk, or all in memory.

On disk, the key-value store also holds, under a key that no row can have, a numbered list of layouts: the columns that
rows were written with. The list grows by one when the declared columns change. In older rows an added column reads as
null, and a removed one is ignored. A changed type, or other key columns, are an error. ``RowReader`` reads from a store
on the store's own thread, from ``CommittedKeyValues`` on any other.

A table in memory is for tables that fit, and are read more often than RocksDB can answer. Its rows are columns
(``KeyedRows``), loaded when they are first read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import polars as pl

from headrace.core.errors import CorruptLogError, DataError, DeclarationError, UsageError
from headrace.rows.dtypes import Columns, columns_from_json, columns_to_json
from headrace.rows.given import concat_rows
from headrace.stores import base
from headrace.stores.encoding import DELETE_LOCAL_STATE, LAYOUTS_MAX, KeyEncoding, ValueEncoding, layouts_of, one_row
from headrace.stores.keyed import KeyedRows
from headrace.stores.keyvalue import Dealt, KeyValueReader, KeyValueStore

Given = Mapping[str, Any] | None  # values of the first columns of a key
SCANNED_ROWS = 8192
_LAYOUTS_KEY = b"\xff"  # the key of a row begins with 0 or 1
ROWS_END = b"\x02"  # a key that is greater than that of any row
_LAYOUTS_FORMAT = 1


class _Layouts(msgspec.Struct, frozen=True, kw_only=True):
    format: int = _LAYOUTS_FORMAT
    key: list[tuple[str, Any]]
    layouts: list[list[tuple[str, Any]]]


_LAYOUTS_DECODER = msgspec.json.Decoder(_Layouts)


class RowReader:
    """Reads rows of ``columns``. ``key`` names the key columns."""

    def __init__(self, reads: KeyValueReader, columns: Columns, key: Sequence[str]) -> None:
        unknown = [name for name in key if name not in columns]
        if unknown or len(set(key)) != len(key):
            what = f"store {reads.id!r}: the key {list(key)} must consist of distinct columns of {list(columns)}"
            raise DeclarationError(what, hint="name each key column once, as in the schema")
        self._reads = reads
        self._id = reads.id
        self.key: Columns = {name: columns[name] for name in key}
        self.values: Columns = {name: dtype for name, dtype in columns.items() if name not in key}
        self._keys = KeyEncoding(self.key)
        self._empty = pl.DataFrame(schema=dict(self.values))
        self._written: bytes | None = None
        self._layouts: list[ValueEncoding] = []

    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        """Return the other columns for each row of ``keys``, in its order; nulls, and False in ``found``, if none."""
        check_types(self._id, keys, self.key)
        values = self._reads.get_many(self._keys.encode(keys))
        present = [value for value in values if value is not None]
        rows = self._decode(present)
        is_found = np.ones(len(values), np.bool_)
        if len(present) < len(values):
            is_found = np.fromiter((value is not None for value in values), np.bool_, len(values))
            rows = _spread(rows, is_found)
        return rows if found is None else rows.with_columns(pl.Series(found, is_found))

    def scan(
        self,
        *,
        start: Given = None,
        stop: Given = None,
        prefix: Given = None,
        reverse: bool = False,
        batch_rows: int = SCANNED_ROWS,
    ) -> Iterator[pl.DataFrame]:
        """Yield all columns of the rows from ``start`` to ``stop`` (exclusive), in key order or reversed.

        All are values of the first key columns, or of all; ``prefix`` selects the rows with these values.
        """
        low, high = key_range(self._id, self.key, start, stop, prefix)
        entries = self._reads.range(low, high, reverse=reverse) if low < high else iter(())
        while batch := list(islice(entries, batch_rows)):
            yield self.rows_of(batch)

    def rows_of(self, entries: Sequence[tuple[bytes, bytes]]) -> pl.DataFrame:
        keys, values = zip(*entries, strict=True)
        rows = self._decode(values)
        return pl.concat([self._keys.decode(keys), rows], how="horizontal")

    def _decode(self, values: Sequence[bytes]) -> pl.DataFrame:
        # The layouts are read after the values, because a commit may have added a layout together with its first rows.
        self._read_layouts()
        if not values:
            return self._empty
        numbers = layouts_of(values)
        present = np.unique(numbers).tolist()
        if present[-1] >= len(self._layouts):
            what = f"store {self._id!r}: a row has the unknown layout {present[-1]}"
            raise CorruptLogError(what, hint=DELETE_LOCAL_STATE)
        if len(present) == 1:
            return self._as_declared(self._layouts[present[0]].decode(values))
        # Each layout's rows are decoded together, then put back in order. With layouts [0, 1, 0] the rows are decoded
        # in the order [0, 2, 1], and argsort([0, 2, 1]) = [0, 2, 1] restores it.
        parts, places = [], []
        for number in present:
            positions = np.flatnonzero(numbers == number)
            places.append(positions)
            parts.append(self._as_declared(self._layouts[number].decode([values[n] for n in positions.tolist()])))
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
        self._layouts = [] if written is None else self._parsed(written)
        self._written = written

    def _parsed(self, written: bytes) -> list[ValueEncoding]:
        known = _LAYOUTS_DECODER.decode(written)
        if known.format != _LAYOUTS_FORMAT:
            raise CorruptLogError(
                f"store {self._id!r}: layouts of format {known.format}; this version of Headrace reads "
                f"{_LAYOUTS_FORMAT}",
                hint="a newer version of Headrace wrote them; upgrade this one",
            )
        base.check_key(self._id, columns_from_json(dict(known.key)), self.key)
        layouts = [columns_from_json(dict(layout)) for layout in known.layouts]
        for columns in layouts:
            base.check_versions(self._id, columns, self.values)
            for name, dtype in self.values.items():
                if name in columns and columns[name] != dtype:
                    raise base.retyped(self._id, name, columns[name], dtype)
        return [ValueEncoding(columns, number) for number, columns in enumerate(layouts)]


class TableStore(RowReader):
    """Reads and writes rows in a key-value store of its own. The task checkpoints this ``store``."""

    def __init__(self, store: KeyValueStore, columns: Columns, key: Sequence[str]) -> None:
        super().__init__(store, columns, key)
        self.store = store
        store.contents = self

    def entries(self) -> int:
        return max(0, self.store.entries() - 1)  # one entry holds the layouts

    def advance(self, now_ms: int) -> None:
        self.store.advance(now_ms)

    def sweep(self, now_ms: int, budget: int) -> int:
        return self.store.sweep(now_ms, budget)

    def check(self) -> None:
        """Raise ``DeclarationError`` if stored rows have another key, or columns of other types."""
        self._read_layouts()

    def dealt(self, share: base.Share, keys: Sequence[bytes], values: Sequence[bytes]) -> Dealt:
        """Encoded with the declared columns: stores number their layouts apart."""
        count = _rows_among(keys)
        rows = self._keys.decode(keys[:count])
        self._read_layouts()
        as_declared = [list(layout.columns.items()) for layout in self._layouts] == [list(self.values.items())]
        if not as_declared or not self.key.keys() >= set(share.columns):
            rows = pl.concat([rows, self._decode(values[:count])], how="horizontal")
        mask = np.append(share.mask(self._id, rows), np.ones(len(keys) - count, np.bool_))
        if as_declared:
            return mask, None
        written = ValueEncoding(self.values, 0).encode(rows.filter(pl.Series(mask[:count])))
        return mask, [*written, *[self._list_of([self.values])] * (len(keys) - count)]

    def shown(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pl.DataFrame:
        count = _rows_among(keys)
        return base.readable(
            pl.concat([self._keys.decode(keys[:count]), self._decode(values[:count])], how="horizontal")
        )

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Set the rows; of equal keys the last one counts. Columns that the table doesn't have are ignored."""
        check_types(self._id, rows, {**self.key, **self.values})
        if rows.height:
            encoding = self._writing()
            self.store.put_many(self._keys.encode(rows), encoding.encode(rows))

    def delete_rows(self, keys: pl.DataFrame) -> None:
        check_types(self._id, keys, self.key)
        self._read_layouts()
        self.store.delete_many(self._keys.encode(keys))

    def _writing(self) -> ValueEncoding:
        """It is added to the stored list when its first row is written."""
        self._read_layouts()
        for layout in reversed(self._layouts):
            if list(layout.columns.items()) == list(self.values.items()):
                return layout
        if len(self._layouts) == LAYOUTS_MAX:
            what = f"store {self._id!r}: the columns have changed {LAYOUTS_MAX} times"
            raise DeclarationError(what, hint="give the step another id (then its state starts empty)")
        columns = [*(layout.columns for layout in self._layouts), self.values]
        self.store.put_many([_LAYOUTS_KEY], [self._list_of(columns)], lasting=True)
        self._read_layouts()
        return self._layouts[-1]

    def _list_of(self, layouts: Sequence[Columns]) -> bytes:
        key, *listed = (list(columns_to_json(columns).items()) for columns in [self.key, *layouts])
        return msgspec.json.encode(_Layouts(key=key, layouts=listed))


def _rows_among(keys: Sequence[bytes]) -> int:
    return len(keys) - (keys[-1] == _LAYOUTS_KEY)


def check_types(id_: str, rows: pl.DataFrame, columns: Columns) -> None:
    """Raise ``DataError`` if the rows lack one of these columns, or have it with another type."""
    for name, dtype in columns.items():
        found = rows.schema.get(name)
        if found != dtype:
            what = f"store {id_!r}: column {name!r} is {found or 'missing'}, but the table has {dtype}"
            raise DataError(what, hint=f"cast it first: pl.col({name!r}).cast(...)" if found else None)


def key_range(id_: str, key: Columns, start: Given, stop: Given, prefix: Given) -> tuple[bytes, bytes]:
    low = _bound(id_, key, start) if start else b""
    high = _bound(id_, key, stop) if stop else ROWS_END
    if prefix:
        first = _bound(id_, key, prefix)
        # In a key with this prefix, the end follows, or the 0 or 1 of the next column. If the prefix ends with a
        # string, a longer string may have the same bytes, with FF after the 0: ROWS_END is below that and excludes it.
        low, high = max(low, first), min(high, first + ROWS_END)
    return low, high


def _bound(id_: str, key: Columns, first: Mapping[str, Any]) -> bytes:
    names = list(key)[: len(first)]
    if set(first) != set(names):
        what = f"store {id_!r}: {list(first)} aren't the first columns of the key {list(key)}"
        raise DeclarationError(what, hint="give values for the first columns of the key, without gaps")
    columns = {name: key[name] for name in names}
    return KeyEncoding(columns).encode(one_row(columns, [first[name] for name in columns]))[0]


def _spread(rows: pl.DataFrame, is_found: np.ndarray[Any, np.dtype[np.bool_]]) -> pl.DataFrame:
    """Rows [a, b] and [True, False, True] give [a, null, b]."""
    if not rows.width:
        return pl.DataFrame(height=len(is_found))
    if not rows.height:
        return rows.clear(len(is_found))
    row_of = pl.Series(np.cumsum(is_found) - 1)
    return rows.select(pl.all().gather(row_of.set(~pl.Series(is_found), None)))


_PUT = "__put"
_KEY = "__key"


class MemoryTable:
    """Reads and writes rows as ``TableStore`` does. The task checkpoints ``store``."""

    def __init__(
        self, id_: str, columns: Columns, key: Sequence[str], *, ttl_ms: int | None = None, in_memory: bool = True
    ) -> None:
        """With ``ttl_ms``, a row expires that long after its last put. ``in_memory``: rows stay there once read."""
        self._id = id_
        self.key: Columns = {name: columns[name] for name in key}
        self.values: Columns = {name: dtype for name, dtype in columns.items() if name not in key}
        self._keys = KeyEncoding(self.key)
        self._ttl_ms = ttl_ms
        self._now: int | None = None
        self._kept = {**self.key, **self.values} | ({} if ttl_ms is None else {_PUT: pl.Int64()})
        what = "a table in memory" + (" with a time to live" if ttl_ms is not None else " without a time to live")
        self.store = KeyedRows(
            id_,
            list(key),
            (),
            [] if ttl_ms is None else [_PUT],
            partial(base.conformed, id_, columns=self._kept, needed=self.key),
            in_memory=in_memory,
            form=base.StateForm(what=what, key=base.described(self.key), columns=base.described(self.values)),
        )

    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        check_types(self._id, keys, self.key)
        asked, rows = self._find(keys.select(self.key.keys()))
        # asked[i] is the key that rows[i] belongs to; row_of is the reverse, with -1 for keys without a row.
        # Of three keys, the third and the first found: asked = [2, 0], row_of = [1, -1, 0].
        row_of = np.full(keys.height, -1, np.int64)
        row_of[asked] = np.arange(len(asked))
        is_found = row_of >= 0
        if not rows.height:
            values = rows.clear(keys.height)
        elif is_found.all():
            values = rows[row_of]
        else:
            values = rows.select(pl.all().gather(pl.Series(row_of).set(pl.Series(~is_found), None)))
        if not self.values:
            values = pl.DataFrame(height=keys.height)
        return values if found is None else values.with_columns(pl.Series(found, is_found))

    def check(self) -> None:
        """Do nothing: the store checks key and types when it is filled."""

    def between(self, low: bytes, high: bytes, most: int) -> tuple[pl.DataFrame, list[bytes]]:
        """Return the first ``most`` rows with ``low <= key < high`` in key order, and their keys. Reads all rows."""
        within = pl.col(_KEY).is_between(pl.lit(low), pl.lit(high), closed="left")
        best = pl.DataFrame(schema={**self.key, **self.values, _KEY: pl.Binary()})
        expired = self._expired_to()
        for held in self.store.held():
            there = held if expired is None else held.filter(pl.col(_PUT) > expired)
            rows = there.select(*self.key, *self.values)
            keys = pl.Series(_KEY, self._keys.encode(rows), pl.Binary)
            best = concat_rows([best, rows.with_columns(keys).filter(within)])
            best = best[best.get_column(_KEY).arg_sort()[:most]]
        return best.drop(_KEY), best.get_column(_KEY).to_list()

    def entries(self) -> int:
        """Expired rows count until they are removed."""
        return self.store.entries()

    def put_rows(self, rows: pl.DataFrame) -> None:
        check_types(self._id, rows, {**self.key, **self.values})
        latest = rows.select(*self.key, *self.values).unique(list(self.key), keep="last")
        self.store.take(latest.select(self.key.keys()))
        if self._ttl_ms is not None:
            if self._now is None:
                what = f"store {self._id!r} has a time to live, but its clock was never set"
                raise UsageError(what, hint="call advance(now_ms) first")
            latest = latest.with_columns(pl.lit(self._now, pl.Int64).alias(_PUT))
        self.store.put(latest)

    def delete_rows(self, keys: pl.DataFrame) -> None:
        check_types(self._id, keys, self.key)
        self.store.take(keys.select(self.key.keys()).unique())

    def advance(self, now_ms: int) -> None:
        """It never goes back."""
        self._now = now_ms if self._now is None else max(self._now, now_ms)

    def sweep(self, now_ms: int, budget: int) -> int:
        """One comparison finds all expired rows, so ``budget`` is ignored."""
        del budget
        self.advance(now_ms)
        before = self.entries()
        expired = self._expired_to()
        if expired is not None:
            self.store.take_due(_PUT, expired)
        return before - self.entries()

    def _find(self, keys: pl.DataFrame) -> tuple[np.ndarray[Any, np.dtype[np.int64]], pl.DataFrame]:
        """Positions in ``keys``, and the other columns of these rows."""
        expired = self._expired_to()
        asked, parts = [], []
        for places, held in self.store.find(keys):
            unexpired = np.arange(held.height)
            if expired is not None:
                unexpired = np.flatnonzero(held.get_column(_PUT).to_numpy() > expired)
            asked.append(places[unexpired])
            rows = held if len(unexpired) == held.height else held[unexpired]
            parts.append(rows.select(self.values.keys()) if self.values else pl.DataFrame(height=rows.height))
        if not parts:
            return np.empty(0, np.int64), pl.DataFrame(schema=dict(self.values))
        rows = concat_rows(parts) if self.values else pl.DataFrame(height=sum(part.height for part in parts))
        return np.concatenate(asked), rows

    def _expired_to(self) -> int | None:
        """The latest put time of a row that has expired; None if none can have."""
        return None if self._ttl_ms is None or self._now is None else self._now - self._ttl_ms


RowTable = TableStore | MemoryTable
