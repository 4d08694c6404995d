"""The stores of low-level tasks: records under keys, read and written one at a time or as batches.

A ``RecordStore`` is a ``TableStore`` that also reads and writes single records fast; the durable bytes are the same.
The functions that do so are compiled for its columns: general ones would take several times as long. The next read sees
a write, and the task's next commit covers it.

Records are kept decoded, as tuples of their values, and encoded when the key-value store needs them: at the commit, or
when something reads or writes them in another way. So a thousand messages of one key between two commits encode one
record. Records and keys that ``quick_records`` isn't for are encoded at once.

One thread uses a store. Reads may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError
from headrace.rows.dtypes import Columns
from headrace.rows.schema import Schema
from headrace.rows.values import NAMES, fits, kind_of
from headrace.stores.encoding import MISFITS, RowCodec, ScalarKeys, ScalarValues, ValueEncoding, is_packed
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.table import ROWS_END, SCANNED_ROWS, TableStore

Row = tuple[Any, ...]  # the values of a record, in the order of its columns
_SOURCE = """
def get(key):
    if {of_kind} and (row := found(key)) is not None:
        return {record}
    return otherwise_get(key)

def put(key, record):
    if type(record) is kind:
        try:
            {values}
        except (KeyError, AttributeError, OverflowError):
            pass  # otherwise_put says what is wrong
        else:
            if {key_fits} and {values_fit}{none_other}:
                top[key] = ({variables},)
                return
    otherwise_put(key, record)

def is_quick(key):
    return {key_fits}
"""


@dataclass(frozen=True, slots=True)
class QuickRecords:
    """``get`` and ``put`` of records that surely fit. Of two equal keys for which ``is_quick``, the bytes are equal."""

    get: Callable[[Any], Any]
    put: Callable[[Any, Any], None]
    is_quick: Callable[[Any], bool]


def quick_records(
    key: Columns, value: Schema, top: dict[Any, Row | None], get: Callable[[Any], Any], put: Callable[[Any, Any], None]
) -> QuickRecords | None:
    """None: not for these columns. Floats can't be in the key, as NaN isn't equal to itself."""
    if not all(map(kind_of, [*key.values(), *value.columns.values()])) or float in map(kind_of, key.values()):
        return None
    several = len(key) > 1
    parts = {f"key[{at}]" if several else "key": dtype for at, dtype in enumerate(key.values())}
    whole = [f"type(key) is tuple and len(key) == {len(key)}"] if several else []
    kinds = [f"type({part}) is {kind.__name__}" for part, dtype in parts.items() if (kind := kind_of(dtype))]
    variables = {f"v{at}": column for at, column in enumerate(value.columns.items())}
    read = "record[{0!r}]" if value.record is None else "record.{0}"
    values = [f"{v} = {read.format(name)}" for v, (name, _) in variables.items()]
    values += [f"if type({v}) is int: {v} = float({v})" for v, (_, dtype) in variables.items() if dtype.is_float()]
    pairs = ", ".join(f"{name!r}: row[{at}]" for at, name in enumerate(value.columns))
    # Source text is compiled, as for dataclasses; only repr() of names enters it, and names of fields.
    source = _SOURCE.format(
        of_kind=" and ".join(whole + kinds),
        key_fits=" and ".join([*whole, *(fits(dtype, part) for part, dtype in parts.items())]),
        record=f"{{{pairs}}}" if value.record is None else "make(*row)",
        values="\n            ".join(values),
        values_fit=" and ".join(f"({v} is None or {fits(dtype, v)})" for v, (_, dtype) in variables.items()),
        variables=", ".join(variables),
        none_other="" if value.record else f" and len(record) == {len(variables)}",
    )
    known: dict[str, Any] = {
        "__name__": __name__, **NAMES, "top": top, "found": top.get, "kind": value.record or dict, "make": value.make,
        "otherwise_get": get, "otherwise_put": put,
    }  # fmt: skip
    exec(compile(source, __file__, "exec"), known)  # noqa: S102 - of our own text
    return QuickRecords(known["get"], known["put"], known["is_quick"])


_ROWS_MAX = 1 << 15
_BYTES_MAX = 8 << 20  # The records that are kept after they were encoded. All are dropped when there are more.


class RecordStore(TableStore):
    """Records by key. ``get_rows``, ``put_rows``, ``delete_rows`` and ``scan`` read and write whole batches."""

    def __init__(self, store: KeyValueStore, key: Columns, value: Schema) -> None:
        super().__init__(store, {**key, **value.columns}, list(key))
        store.ahead = self
        self._value = value
        self._scalar_keys = ScalarKeys(key)
        self._single = len(key) == 1
        self._packed = is_packed(self.key) and is_packed(self.values)
        self._writer: ScalarValues | None = None
        self._readers: dict[int, ScalarValues] = {}
        self._encode: Callable[[Row], bytes] | None = None
        self._row: Callable[[bytes], Row] = self._any_row
        # Three layers of decoded records, the newest first; None marks a deleted one. _top and _under aren't in the
        # key-value store yet. While a trial is under way, _top has its writes alone. _clean are copies.
        self._top: dict[Any, Row | None] = {}
        self._under: dict[Any, Row | None] = {}
        self._clean: dict[Any, Row | None] = {}
        self._clean_bytes = 0
        self._trying = self._store_tries = False
        self._is_kept: Callable[[Any], bool] = lambda key: False  # whether the records of such keys are kept decoded
        if (quick := quick_records(key, value, self._top, self.get, self.put)) is not None:
            vars(self).update(get=quick.get, put=quick.put)
            self._is_kept = quick.is_quick

    def get(self, key: Any) -> Any:
        """Return the record of a key, or None. A changed record must be ``put`` again."""
        row = self._found(key)
        return None if row is None else self._value.make(*row)

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        return list(map(self.get, keys))

    def __contains__(self, key: object) -> bool:
        return self._found(key) is not None

    def put(self, key: Any, record: Any) -> None:
        """Set the record of a key: a dict with all columns (None for null), or an instance of the dataclass."""
        encoded = self._before_write(key)
        self.store.put(encoded, self._encoded(tuple(self._value.values_of(record))))

    def delete(self, key: Any) -> None:
        if self._is_kept(key):
            self._top[key] = None
        else:
            self.store.delete(self._before_write(key))

    def items(
        self, prefix: Any = None, *, start: Any = None, stop: Any = None, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Yield keys and records, in key order or reversed, as the iteration proceeds.

        ``prefix``, ``start`` and ``stop`` (exclusive) are values of the first columns of the key. Writes during the
        iteration may show or not; no key comes twice.
        """
        low = b"" if start is None else self._encoded_prefix(start)
        high = ROWS_END if stop is None else self._encoded_prefix(stop)
        if prefix is not None:
            first = self._encoded_prefix(prefix)
            low, high = max(low, first), min(high, first + ROWS_END)
        self.write()
        entries: Iterable[tuple[bytes, bytes]] = self.store.range(low, high, reverse=reverse) if low < high else ()
        for key, data in entries:
            values = self._scalar_keys.decode(key)
            yield (values[0] if self._single else values), self._value.make(*self._row(data))

    @override
    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        self.write()
        return super().get_rows(keys, found=found)

    @override
    def scan(
        self,
        *,
        start: Mapping[str, Any] | None = None,
        stop: Mapping[str, Any] | None = None,
        prefix: Mapping[str, Any] | None = None,
        reverse: bool = False,
        batch_rows: int = SCANNED_ROWS,
    ) -> Iterator[pl.DataFrame]:
        self.write()
        return super().scan(start=start, stop=stop, prefix=prefix, reverse=reverse, batch_rows=batch_rows)

    @override
    def put_rows(self, rows: pl.DataFrame) -> None:
        self.write()
        self._forget_copies()
        super().put_rows(rows)

    @override
    def delete_rows(self, keys: pl.DataFrame) -> None:
        self.write()
        self._forget_copies()
        super().delete_rows(keys)

    # -- writes that may be undone

    def begin_trial(self) -> None:
        if self._top:
            self._under.update(self._top)
            self._top.clear()
        self._trying, self._store_tries = True, False

    def end_trial(self, *, keep: bool) -> None:
        self._trying = False
        if not keep:
            self._top.clear()
        if self._store_tries:
            self.store.end_trial(keep=keep)
            if not keep:
                self._forget_copies()

    def write(self) -> None:
        self._move(self._under)
        if self._trying and not self._store_tries:
            self._store_tries = True
            self.store.begin_trial()
        self._move(self._top)

    def forget(self) -> None:
        self._top.clear()
        self._under.clear()
        self._forget_copies()

    def _move(self, rows: dict[Any, Row | None]) -> None:
        if not rows:
            return
        kept = {key: row for key, row in rows.items() if row is not None}
        deleted = [key for key, row in rows.items() if row is None]
        size = self._write_packed(kept, deleted) if self._packed else self._write_rows(kept, deleted)
        self._make_room(len(rows), size)
        self._clean.update(rows)
        rows.clear()

    def _write_packed(self, kept: dict[Any, Row], deleted: list[Any]) -> int:
        values = list(map(self._encoded, kept.values()))
        self.store.delete_many(list(map(self._key, deleted)))
        self.store.put_many(list(map(self._key, kept)), values)
        return sum(map(len, values))

    def _write_rows(self, kept: dict[Any, Row], deleted: list[Any]) -> int:
        """As ``_write_packed``, in columns: one row of such columns would take as long as hundreds."""
        super().delete_rows(self._frame(self.key, [self._parts(key) for key in deleted]))
        whole = self._frame({**self.key, **self.values}, [(*self._parts(key), *row) for key, row in kept.items()])
        super().put_rows(whole)
        return whole.estimated_size()  # type: ignore[return-value]  # bytes are an int

    def _frame(self, columns: Columns, rows: list[Row]) -> pl.DataFrame:
        schema = Schema(columns)
        return schema.from_columns(list(zip(*rows, strict=True)), str) if rows else schema.empty()

    def _parts(self, key: Any) -> Row:
        return (key,) if self._single else key

    def _make_room(self, rows: int, size: int) -> None:
        self._clean_bytes += size
        if len(self._clean) + rows > _ROWS_MAX or self._clean_bytes > _BYTES_MAX:
            self._forget_copies()

    def _forget_copies(self) -> None:
        self._clean.clear()
        self._clean_bytes = 0

    def _found(self, key: Any) -> Row | None:
        if not self._is_kept(key):
            self.write()
            data = self.store.get(self._key(key))
            return None if data is None else self._row(data)
        for layer in (self._top, self._under, self._clean):
            if key in layer:
                return layer[key]
        data = self.store.get(self._key(key))
        row = None if data is None else self._row(data)
        self._make_room(1, 0 if data is None else len(data))
        self._clean[key] = row
        return row

    def _before_write(self, key: Any) -> bytes:
        """The bytes may be those of a record that is kept, as for True and 1."""
        self.write()
        encoded = self._key(key)
        if self._clean:
            values = self._scalar_keys.decode(encoded)
            self._clean.pop(values[0] if self._single else values, None)
        return encoded

    def _key(self, key: Any) -> bytes:
        if self._single:
            return self._scalar_keys.encode_one(key)
        if not isinstance(key, tuple) or len(key) != len(self.key):
            what = f"store {self._id!r}: {key!r:.100} isn't a key; the key has the columns {', '.join(self.key)}"
            raise DataError(what, hint="pass a tuple with one value per column, in this order")
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

    def _encoded(self, row: Row) -> bytes:
        if self._encode is not None:
            try:
                return self._encode(row)
            except MISFITS:
                pass  # it has a null, or it doesn't fit: then the error is raised below
        if self._writer is None:
            layout = self._writing()
            self._writer = ScalarValues(layout)
            if (codec := self._codec(layout)) is not None:
                self._encode, self._row = codec.encode, codec.decode
        return self._writer.encode(row)

    def _any_row(self, data: bytes) -> Row:
        reader = self._readers.get(data[1]) if len(data) > 1 else None
        return tuple(self._decoded(data) if reader is None else reader.decode(data))

    def _decoded(self, data: bytes) -> Sequence[Any]:
        number = data[1] if len(data) > 1 else -1
        reader = self._reader(number)
        if reader is not None:
            self._readers[number] = reader
            if (codec := self._codec(self._layouts[number])) is not None:
                self._row = codec.decode
        return self._decode([data]).row(0)

    def _codec(self, layout: ValueEncoding) -> RowCodec | None:
        return RowCodec(layout, self._any_row) if is_packed(self.values) else None

    def _reader(self, number: int) -> ScalarValues | None:
        self._read_layouts()
        if not 0 <= number < len(self._layouts):
            return None  # then the columnar decoder raises the error
        layout = self._layouts[number]
        return ScalarValues(layout) if list(layout.columns.items()) == list(self.values.items()) else None
