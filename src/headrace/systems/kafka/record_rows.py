"""Records of a topic as rows: what formats make of values and keys, and what Kafka says of a record. Columnar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.ids import Offset
from headrace.serdes.dtypes import Columns
from headrace.serdes.formats import Decoder, Format, Payload
from headrace.serdes.headers import HEADERS, header_column
from headrace.systems.kafka.fetched import Fetched

ABOUT: Mapping[str, pl.DataType] = {
    "key": pl.Binary(),
    "headers": HEADERS,
    "timestamp": pl.Datetime("ms"),
    "partition": pl.Int32(),
    "offset": pl.Int64(),
}
"""What can be known of a record, and its type; a key has the type of its format."""


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """The rows of the good records; ``offsets`` are theirs if they have gaps. Of each bad one its index and why."""

    frame: pl.DataFrame
    offsets: npt.NDArray[np.int64] | None
    bad: Sequence[tuple[int, str]] = ()


class KeyColumn:
    """A column of keys, in the type of their format: its only column, or else a struct of its columns."""

    def __init__(self, name: str, format: Format, dtype: pl.DataType) -> None:
        """``dtype`` is the declared type. Raises ``DeclarationError`` if the format can't have it."""
        self.name = name
        self.dtype = dtype
        self._whole = isinstance(dtype, pl.Struct)
        columns = {f.name: f.dtype for f in dtype.fields} if isinstance(dtype, pl.Struct) else {name: dtype}
        self._decoder = format.decoder(columns)  # type: ignore[arg-type]

    def decode(self, keys: Sequence[Payload]) -> tuple[pl.Series, dict[int, str]]:
        """One value for each key; of each bad one its index and why. A key that is missing is null."""
        there = [index for index, key in enumerate(keys) if key is not None]
        found = self._decoder.decode(keys if len(there) == len(keys) else [keys[index] for index in there])
        bad = {there[index]: f"key: {reason}" for index, reason in found.bad}
        values = found.frame.to_struct(self.name) if self._whole else found.frame.to_series().alias(self.name)
        if len(values) == len(keys):
            return values, bad
        places = np.full(len(keys), -1, dtype=np.int64)
        good = np.delete(np.array(there, dtype=np.int64), [*(i for i, _ in found.bad), *found.skipped])
        places[good] = np.arange(len(good))
        indices = pl.Series(places)
        return values.gather(indices.set(indices < 0, None)), bad


def key_dtype(format: Format) -> pl.DataType | None:
    """The type of a column of keys in this format; None if only a schema can say it."""
    columns = format.columns()
    if columns is None:
        return None
    return next(iter(columns.values())) if len(columns) == 1 else pl.Struct(columns)


class RecordRows:
    """Makes rows of records. ``about`` names columns of the result, and what of ``ABOUT`` they say."""

    def __init__(self, decoder: Decoder, about: Mapping[str, str], keys: Sequence[KeyColumn] = ()) -> None:
        self._decoder = decoder
        self._about = {name: what for name, what in about.items() if what != "key"}
        self._keys = keys

    def wants(self, what: str) -> bool:
        """Whether ``key``, ``timestamp`` or ``headers`` of records are needed."""
        return bool(self._keys) if what == "key" else what in self._about.values()

    def decode(self, partition: int, records: Fetched) -> DecodedRecords:
        """The rows. Raises an error that may be retried, as ``Decoder.decode`` does."""
        decoded = self._decoder.decode(records.values)
        frame, bad = decoded.frame, dict(decoded.bad)
        columns = [_about(what, partition, records).alias(name) for name, what in self._about.items()]
        wrong: dict[int, str] = {}
        for key in self._keys:
            values, unreadable = key.decode(records.keys)
            columns.append(values)
            wrong |= unreadable
        whole = not bad and not decoded.skipped and not wrong
        if whole:
            return DecodedRecords(frame.with_columns(columns), None if records.dense else _numbers(records.offsets))
        out = np.zeros(len(records), dtype=bool)
        out[[*bad, *decoded.skipped]] = True
        misfits = np.zeros(len(records), dtype=bool)
        misfits[list(wrong)] = True
        if misfits.any():
            frame = frame.filter(pl.Series(~misfits[~out]))
        kept = ~(out | misfits)
        skipped = set(decoded.skipped)
        bad = {**{i: why for i, why in wrong.items() if i not in skipped}, **bad}
        mask = pl.Series(kept)
        frame = frame.with_columns(column.filter(mask) for column in columns)
        plain = records.dense and not skipped
        return DecodedRecords(frame, None if plain else _numbers(records.offsets)[kept], sorted(bad.items()))


def _about(what: str, partition: int, records: Fetched) -> pl.Series:
    match what:
        case "headers":
            return header_column(records.headers)
        case "timestamp":
            times = pl.Series(records.times, dtype=pl.Int64)
            return times.set(times < 0, None).cast(pl.Datetime("ms"))
        case "partition":
            return pl.repeat(partition, len(records), dtype=pl.Int32, eager=True)
        case _:
            return pl.Series(_numbers(records.offsets))


def _numbers(offsets: Sequence[Offset]) -> npt.NDArray[np.int64]:
    if isinstance(offsets, range):
        return np.arange(offsets.start, offsets.stop, dtype=np.int64)
    return np.array(offsets, dtype=np.int64)


def columns_about(about: Mapping[str, str], key: pl.DataType | None) -> Columns:
    """Return the columns with a record's metadata. A ``key`` of unknown type is left out."""
    found = {name: key if what == "key" else ABOUT[what] for name, what in about.items()}
    return {name: dtype for name, dtype in found.items() if dtype is not None}
