"""The stores of low-level tasks: records under keys, read and written one at a time or as batches.

A ``RecordStore`` is a ``TableStore`` that also reads and writes single records fast; the durable bytes are the same. A
key is a value, or a tuple of values if it has several columns. A record is a dict, or an instance of the dataclass that
the store was declared with. The next read sees a write, and the task's next commit covers it.

One thread uses a store. Reads may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from headrace.core.errors import DataError
from headrace.serdes.schema import Schema
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.row_values import ValueEncoding
from headrace.stores.scalar_rows import MISFITS, RecordCodec, ScalarKeys, ScalarValues, is_packed
from headrace.stores.table import TableStore

_ROWS_END = b"\x02"
_NO_KEY = object()
_IMMUTABLE = (str, int, bytes)


class RecordStore(TableStore):
    """Records by key. ``get_rows``, ``put_rows``, ``delete_rows`` and ``scan`` read and write whole batches."""

    def __init__(self, store: KeyValueStore, key: Mapping[str, pl.DataType], value: Schema) -> None:
        super().__init__(store, {**key, **value.columns}, list(key))
        self._value = value
        self._scalar_keys = ScalarKeys(key)
        self._single = len(key) == 1
        # A key is often read and written in turn. It is recognised by identity: equal ones may be of other types.
        self._last: Any = _NO_KEY
        self._last_encoded = b""
        self._writer: ScalarValues | None = None
        self._readers: dict[int, ScalarValues] = {}
        self._encode: Callable[[dict[str, Any]], bytes] | None = None
        self._record: Callable[[bytes], Any] = self._any_record

    # -- one record

    def get(self, key: Any) -> Any:
        """Return the record of a key, or None. A changed record must be ``put`` again."""
        data = self._store.get(self._last_encoded if key is self._last else self._key(key))
        return None if data is None else self._record(data)

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """Return the record of each key, or None."""
        found = self.store.get_many([self._key(key) for key in keys])
        return [None if data is None else self._record(data) for data in found]

    def __contains__(self, key: object) -> bool:
        return self.store.get(self._key(key)) is not None

    def put(self, key: Any, record: Any) -> None:
        """Set the record of a key: a dict with all columns (None for null), or an instance of the dataclass."""
        encoded = self._key(key)
        if self._encode is not None and type(record) is dict:
            try:
                value = self._encode(record)
            except MISFITS:
                pass  # it has a null, or it doesn't fit: then the error is raised below
            else:
                self._store.put(encoded, value)
                return
        if self._writer is None:
            layout = self._writing()
            self._writer = ScalarValues(layout)
            if (codec := self._codec(layout)) is not None:
                self._encode, self._record = codec.encode, codec.decode
        self._store.put(encoded, self._writer.encode(self._value.values_of(record)))

    def delete(self, key: Any) -> None:
        """Delete a key, if it exists."""
        self.store.delete(self._key(key))

    def items(
        self, prefix: Any = None, *, start: Any = None, stop: Any = None, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Yield keys and records, in key order or reversed. They are read as the iteration proceeds.

        ``prefix``, ``start`` and ``stop`` (exclusive) are values of the first columns of the key. Writes during the
        iteration may show or not; no key comes twice.
        """
        low = b"" if start is None else self._encoded_prefix(start)
        high = _ROWS_END if stop is None else self._encoded_prefix(stop)
        if prefix is not None:
            first = self._encoded_prefix(prefix)
            low, high = max(low, first), min(high, first + _ROWS_END)
        entries: Iterable[tuple[bytes, bytes]] = self.store.range(low, high, reverse=reverse) if low < high else ()
        for key, data in entries:
            values = self._scalar_keys.decode(key)
            yield (values[0] if self._single else values), self._record(data)

    # -- inside

    def _key(self, key: Any) -> bytes:
        if key is self._last:
            return self._last_encoded
        if self._single:
            encoded = self._scalar_keys.encode_one(key)
            if type(key) in _IMMUTABLE:
                self._last, self._last_encoded = key, encoded
            return encoded
        if not isinstance(key, tuple) or len(key) != len(self.key):
            raise DataError(
                f"store {self._id!r}: {key!r:.100} isn't a key; the key has the columns {', '.join(self.key)}",
                hint="pass a tuple with one value per column, in this order",
            )
        return self._scalar_keys.encode(key)

    def _encoded_prefix(self, values: Any) -> bytes:
        first = values if isinstance(values, tuple) else (values,)
        if not 1 <= len(first) <= len(self.key):
            raise DataError(
                f"store {self._id!r}: {values!r:.100} isn't a prefix of a key; the key has the columns "
                f"{', '.join(self.key)}",
                hint="pass values for the key's first columns, in order",
            )
        return self._scalar_keys.encode(first)

    def _any_record(self, data: bytes) -> Any:
        reader = self._readers.get(data[1]) if len(data) > 1 else None
        return self._value.make(*(self._decoded(data) if reader is None else reader.decode(data)))

    def _decoded(self, data: bytes) -> Sequence[Any]:
        """Return the values of a record, and keep a reader for the next record of the same layout."""
        number = data[1] if len(data) > 1 else -1
        reader = self._reader(number)
        if reader is not None:
            self._readers[number] = reader
            if (codec := self._codec(self._layouts[number])) is not None:
                self._record = codec.decode
        return self._decode([data]).row(0)

    def _codec(self, layout: ValueEncoding) -> RecordCodec | None:
        return RecordCodec(layout, self._value.make, self._any_record) if is_packed(self.values) else None

    def _reader(self, number: int) -> ScalarValues | None:
        """Return a reader of records of this layout; None if its columns aren't those that are declared now."""
        self._read_layouts()
        if not 0 <= number < len(self._layouts):
            return None  # then the columnar decoder raises the error
        layout = self._layouts[number]
        return ScalarValues(layout) if list(layout.columns.items()) == list(self.values.items()) else None
