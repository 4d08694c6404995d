"""The contract of a state store, and what all stores share: changes, forms, and shares of rows. Pure.

A store's part of the changelog is a series of *changes*: bytes that only the store reads, which start with a format
byte. Applied in order to an empty store, they restore its contents; the local database is a cache of that. A change of
a key-value store is one byte for the operation, then one Arrow IPC stream of two binary columns, ``key`` and ``value``;
a null value means that the key was deleted. State moves to other tasks in the same changes (``docs/design/state.md``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.core.errors import CorruptLogError, DeclarationError, FrameError, UsageError
from headrace.rows.dtypes import Columns, dtype_to_json
from headrace.rows.given import concat_rows
from headrace.rows.hashing import partition_of
from headrace.rows.ipc import decode_rows

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Share:
    """The rows whose values in ``columns`` hash to ``partition`` of ``partitions``, as a shuffle would send them.

    ``columns`` are those of the shuffle, in that order, under the names that the store has for them. What has no key,
    like an outbox, isn't dealt: all of it belongs to the one share that is ``first``.
    """

    partition: int
    partitions: int
    columns: tuple[str, ...] = ()
    first: bool = False

    def by(self, columns: Sequence[str]) -> Share:
        return replace(self, columns=tuple(columns))

    def mask(self, store: str, rows: pl.DataFrame) -> Mask:
        """Raises ``UsageError`` if they lack one of its columns."""
        missing = [name for name in self.columns if name not in rows.columns]
        if missing or not self.columns:
            raise self.undealt(store, f"its rows have no column {', '.join(map(repr, missing)) or 'to divide them by'}")
        if self.partitions == 1:
            return np.full(rows.height, self.partition == 0, np.bool_)
        mask: Mask = partition_of(rows, self.columns, self.partitions) == self.partition
        return mask

    def of(self, store: str, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.filter(pl.Series(self.mask(store, rows)))

    def undealt(self, store: str, why: str) -> UsageError:
        hint = "keep the number of partitions, or give the step another id (then its state starts empty)"
        return UsageError(f"store {store!r} can't be divided among {self.partitions} tasks: {why}", hint=hint)


class View(Protocol):
    """One store's keys in the local database, for reading."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None."""

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries with ``start <= key < stop`` (None: to the end), as of when the first one is taken."""


class PinnableView(View, Protocol):
    """A view whose present contents can be pinned."""

    def pinned(self) -> AbstractContextManager[PinnableView]:
        """Return the same view, unaffected by later writes. Use it only briefly: it keeps old files on the disk."""


class Writes(Protocol):
    """One store's writes to the local database. They become visible together with those of all other stores."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""

    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Set each key to the value at the same position."""

    def delete(self, key: bytes) -> None:
        """Delete a key, if it exists."""

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Delete each key that exists."""

    def delete_all(self) -> None:
        """Delete all keys of the store. Keys put afterwards remain."""


class StateStore(Protocol):
    """The state of one operator in one task. One thread uses it."""

    id: str  # the durable name of the store, unique in the task: the id that the user gave the operator

    def take_changes(self, version: int) -> list[bytes]:
        """Return the changes since the last call, or since the start. They become part of commit ``version``."""

    def apply(self, change: bytes) -> None:
        """Apply a change again. ``take_changes`` doesn't return it."""

    def attach(self, view: View) -> None:
        """Continue from what ``persist`` wrote. Called once, while the store is empty."""

    def persist(self, writes: Writes) -> None:
        """Write what was committed since the last call. The caller writes the batch after this has returned."""

    def clear(self) -> None:
        """Make the store empty, as at the start."""

    def whole(self, share: Share | None = None) -> Iterator[bytes]:
        """Yield small changes that make an empty store equal to what this one has committed, or to a share of it.

        Nothing may be written to the store meanwhile. Raises ``UsageError`` for a store that can't be dealt, and for a
        share whose columns its rows don't have.
        """

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yield its committed contents as rows with readable columns, some at a time, for display."""

    def entries(self) -> int:
        """Return about how many entries the store has, for status pages."""


CHANGE_BYTES_MAX = 900_000
"""Kafka's default limit of a record is 1 MiB. Header, store id and Arrow's own bytes are added to this."""
_OFFSETS_BYTES = 9  # an entry's two offsets, and its share of the null bitmap
_SCHEMA = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])


def encode_entries(
    operation: bytes, keys: Sequence[bytes], values: Sequence[bytes | None], bytes_max: int = CHANGE_BYTES_MAX
) -> list[bytes]:
    """Return entries as changes of at most ``bytes_max`` each, or of one entry if that alone is larger."""
    if not keys:
        return []
    all_keys = pa.array(keys, pa.large_binary())
    all_values = pa.array(values, pa.large_binary())
    changes = []
    for low, high in _cuts(_sizes(all_keys) + _sizes(all_values) + _OFFSETS_BYTES, bytes_max):
        pair = [all_keys[low:high].cast(pa.binary()), all_values[low:high].cast(pa.binary())]
        sink = pa.BufferOutputStream()
        sink.write(operation)
        with pa.ipc.new_stream(sink, _SCHEMA) as stream:
            stream.write_batch(pa.record_batch(pair, schema=_SCHEMA))
        changes.append(sink.getvalue().to_pybytes())
    return changes


def decode_change(change: bytes) -> tuple[list[bytes], list[bytes | None]]:
    """Return keys and values (None: deleted) of a change. Ignores its operation. Raises ``CorruptLogError``."""
    try:
        rows = decode_rows(memoryview(change)[1:])
    except FrameError as error:
        raise CorruptLogError(f"a change in the changelog is damaged: {error.message}", hint=error.hint) from error
    if rows.columns != _SCHEMA.names:
        what = f"a change in the changelog has the columns {rows.columns}, not {_SCHEMA.names}"
        hint = "check whether another program writes to the changelog; otherwise its bytes are damaged"
        raise CorruptLogError(what, hint=hint)
    return rows.get_column("key").to_list(), rows.get_column("value").to_list()


def _sizes(array: pa.LargeBinaryArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.diff(np.frombuffer(array.buffers()[1], np.int64)[: len(array) + 1])


def _cuts(sizes: np.ndarray[tuple[int], np.dtype[np.int64]], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Sizes [4, 4, 9, 1] and 8 bytes give (0, 2), (2, 3), (3, 4)."""
    ends = sizes.cumsum()
    low = 0
    while low < len(ends):
        before = ends[low - 1] if low else 0
        high = max(low + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        yield low, high
        low = high


_OTHER_ID = "give the step another id (then its state starts empty)"
TAKE_BACK = f"undo the change of the declaration, or {_OTHER_ID}"
FORM = b"\x05"
"""The operation of a change that holds a form. No other kind of store uses it, so it identifies the kind."""
_RENAME = f"add a column with another name, or {_OTHER_ID}"


class StateForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a store's rows are. ``what`` names the kind of state; the rest says what a column is, usually its type.

    ``key``, whose order counts, and ``fixed`` never change; ``columns`` may come and go.
    """

    what: str
    key: dict[str, str] = {}
    fixed: dict[str, str] = {}
    columns: dict[str, str] = {}

    def written(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, data: bytes) -> StateForm:
        return msgspec.json.decode(data, type=cls)


def described(columns: Columns) -> dict[str, str]:
    return {name: _type_as_text(dtype) for name, dtype in columns.items()}


def misfit(kept: StateForm, declared: StateForm) -> tuple[str, str] | None:
    if kept.what != declared.what:
        return f"was stored as {kept.what}, but is now declared as {declared.what}", TAKE_BACK
    if list(kept.key.items()) != list(declared.key.items()):
        return f"has the key {_shown(kept.key)}, but is now declared with {_shown(declared.key)}", TAKE_BACK
    for name in sorted({*kept.fixed, *declared.fixed}):
        was, now = kept.fixed.get(name), declared.fixed.get(name)
        if was != now:
            return f"{name} was stored as {was or 'nothing'}, but is now declared as {now or 'nothing'}", TAKE_BACK
    for name, now in declared.columns.items():
        was = kept.columns.get(name, now)
        if was != now:
            return f"column {name!r} was stored as {was}, but is now declared as {now}", _RENAME
    return None


def check_form(id_: str, kept: StateForm, declared: StateForm) -> None:
    found = misfit(kept, declared)
    if found is not None:
        what, hint = found
        raise DeclarationError(f"store {id_!r}{' ' if what.startswith(('was', 'has')) else ': '}{what}", hint=hint)


def grown(kept: StateForm | None, declared: StateForm) -> StateForm:
    """Return the form of rows of both forms together. A removed column stays in it: older rows may still have it."""
    if kept is None:
        return declared
    return msgspec.structs.replace(declared, columns={**kept.columns, **declared.columns})


def unknown_change(store: str, operation: bytes) -> CorruptLogError:
    what = f"{store}: unknown change format {operation!r} in the changelog"
    return CorruptLogError(what, hint="a newer version of Headrace wrote the changelog; upgrade this one")


def unknown_format(id_: str, found: int, known: int) -> CorruptLogError:
    what = f"store {id_!r}: local state of format {found}; this version of Headrace reads {known}"
    return CorruptLogError(what, hint="upgrade Headrace, or delete the local state: it is rebuilt from the changelog")


def other_kind(id_: str) -> DeclarationError:
    return DeclarationError(
        f"store {id_!r} was stored in another form: a table on disk that is now in memory, or the reverse, or a step "
        "of another kind",
        hint=TAKE_BACK,
    )


def with_types(columns: Iterable[str], types: Columns) -> dict[str, str]:
    return described({name: types[name] for name in columns})


def _type_as_text(dtype: pl.DataType) -> str:
    try:
        found = dtype_to_json(dtype)
    except DeclarationError:  # a type that streams can't hold, but memory can
        return str(dtype)
    return found if isinstance(found, str) else json.dumps(found, separators=(",", ":"))


def _shown(columns: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {what}" for name, what in columns.items()) or "(none)"


SINCE = "__since"  # the column with the event time (ms) from which a version of a row holds
GONE = "__gone"  # the column that says whether a version is a deletion


def conformed(
    id_: str,
    rows: pl.DataFrame,
    columns: Columns,
    needed: Collection[str],
    added: Mapping[str, pl.Series] | None = None,
) -> pl.DataFrame:
    """Return the rows of a store with ``columns``, without removed ones. Added ones are null, or as in ``added``.

    Raises ``DeclarationError`` if a type has changed, or if one of ``needed`` was added.
    """
    check_versions(id_, rows.columns, columns)
    if rows.columns == list(columns) and dict(rows.schema) == dict(columns):
        return rows
    for name, dtype in columns.items():
        kept = rows.schema.get(name)
        if (kept is None and name in needed) or (kept is not None and kept != dtype):
            raise retyped(id_, name, kept or "nothing", dtype)
    found = []
    for name, dtype in columns.items():
        if name in rows.columns:
            found.append(rows.get_column(name))
        else:
            value = pl.Series(name, [None], dtype) if added is None or name not in added else added[name]
            found.append(value.alias(name).new_from_index(0, rows.height))
    return pl.DataFrame(found)


def retyped(id_: str, name: str, kept: object, declared: object) -> DeclarationError:
    what = f"column {name!r} was stored as {kept}, but is now declared as {declared}"
    return DeclarationError(f"store {id_!r}: {what}", hint=_RENAME)


def check_versions(id_: str, kept: Collection[str], declared: Collection[str]) -> None:
    """Raise ``DeclarationError`` if versions are no longer declared, because stored deletions would become rows."""
    if GONE in kept and GONE not in declared:
        what = f"store {id_!r} was stored with versions, but is now declared without them"
        raise DeclarationError(what, hint=TAKE_BACK)


def check_key(id_: str, kept: Columns, declared: Columns) -> None:
    if list(kept.items()) != list(declared.items()):
        what = f"the key {_shown(kept)}, but is now declared with {_shown(declared)}"
        raise DeclarationError(f"store {id_!r} has {what}", hint=TAKE_BACK)


_READABLE = {
    "__start": "window_start",
    "__end": "window_end",
    "__slice": "slice_start",
    "__due": "due_at",
    "__since": "valid_from",
    "__until": "valid_until",
    "__gone": "deleted",
    "__put": "put_at",
    "__time": "time",
}
"""What columns of a store's own are called. Numbers in them are times in milliseconds."""
_EARLIEST, _LATEST = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999. What is outside of them means always, or never."""


def readable(rows: pl.DataFrame) -> pl.DataFrame:
    columns = []
    for name, dtype in rows.schema.items():
        if not name.startswith("__"):
            columns.append(pl.col(name))
        elif name in _READABLE and _READABLE[name] not in rows.columns:
            known = column = pl.col(name)
            if dtype == pl.Int64:
                known = pl.when(column.is_between(_EARLIEST, _LATEST)).then(column).cast(pl.Datetime("ms"))
            columns.append(known.alias(_READABLE[name]))
    return rows.select(columns)


PORTION_ROWS_MAX = 1 << 14
PORTION_BYTES = 8 << 20


def in_portions(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield keys and values of some entries at a time, about ``PORTION_BYTES`` at most."""
    count = 256
    while True:
        # A list of pairs would be three times slower: the garbage collector visits pairs, but neither keys nor values.
        keys, values = [], []
        for key, value in islice(entries, count):
            keys.append(key)
            values.append(value)
        if not keys:
            return
        size = sum(map(len, keys)) + sum(map(len, values))
        count = max(1, min(PORTION_ROWS_MAX, 4 * len(keys), len(keys) * PORTION_BYTES // max(1, size)))
        yield keys, values


def rows_in_portions(frames: Iterable[pl.DataFrame], rows_max: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of all frames in order, in frames of about ``PORTION_BYTES`` and of ``rows_max`` rows at most."""
    waiting: list[pl.DataFrame] = []
    rows = size = 0
    for frame in frames:
        if not frame.height:
            continue
        more = int(frame.estimated_size())
        if waiting and (rows + frame.height > rows_max or size + more > PORTION_BYTES):
            yield concat_rows(waiting)
            waiting, rows, size = [], 0, 0
        if frame.height > rows_max or more > PORTION_BYTES:
            yield from frame.iter_slices(max(1, min(rows_max, frame.height * PORTION_BYTES // more)))
            continue
        waiting.append(frame)
        rows, size = rows + frame.height, size + more
    if waiting:
        yield concat_rows(waiting)
