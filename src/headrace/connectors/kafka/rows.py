"""Records of a topic as rows, and rows as records. Columnar.

Rows become records before their commit. What Kafka can't take stops the app while another version of it can still drop
it. The outbox keeps the records, so a version that is published again has exactly the same ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.connectors.kafka.fetching import FetchedRecords
from headrace.connectors.kafka.settings import RECORD_COLUMNS
from headrace.core.errors import DataError, DeclarationError
from headrace.core.ids import Offset
from headrace.rows.dtypes import Columns
from headrace.rows.formats import Decoder, Format, Payload
from headrace.rows.given import HEADERS, header_column
from headrace.rows.hashing import layout


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


class RecordRows:
    """Makes rows of records. ``about`` names columns of the result, and what of ``RECORD_COLUMNS`` they say."""

    def __init__(self, decoder: Decoder, about: Mapping[str, str], keys: Sequence[KeyColumn] = ()) -> None:
        self._decoder = decoder
        self._about = {name: what for name, what in about.items() if what != "key"}
        self._keys = keys

    def wants(self, what: str) -> bool:
        return bool(self._keys) if what == "key" else what in self._about.values()

    def decode(self, partition: int, records: FetchedRecords) -> DecodedRecords:
        decoded = self._decoder.decode(records.values)
        frame, bad = decoded.frame, dict(decoded.bad)
        columns = [_about(what, partition, records).alias(name) for name, what in self._about.items()]
        wrong: dict[int, str] = {}
        for key in self._keys:
            values, unreadable = key.decode(records.keys)
            columns.append(values)
            wrong |= unreadable
        if not (bad or decoded.skipped or wrong):
            return DecodedRecords(frame.with_columns(columns), None if records.dense else _numbers(records.offsets))
        out = np.zeros(len(records), dtype=bool)
        out[[*bad, *decoded.skipped]] = True
        misfits = np.zeros(len(records), dtype=bool)
        misfits[list(wrong)] = True
        if misfits.any():
            frame = frame.filter(pl.Series(~misfits[~out]))
        kept, skipped = ~(out | misfits), set(decoded.skipped)
        bad = {**{i: why for i, why in wrong.items() if i not in skipped}, **bad}
        frame = frame.with_columns(column.filter(pl.Series(kept)) for column in columns)
        plain = records.dense and not skipped
        return DecodedRecords(frame, None if plain else _numbers(records.offsets)[kept], sorted(bad.items()))


def _about(what: str, partition: int, records: FetchedRecords) -> pl.Series:
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
    found = {name: key if what == "key" else RECORD_COLUMNS[what] for name, what in about.items()}
    return {name: dtype for name, dtype in found.items() if dtype is not None}


OVERHEAD = 512  # the most that a record has beyond its key, value and headers: Kafka's own, and our headers
_PER_HEADER = 12
_TEXTS = (pl.String, pl.Categorical, pl.Enum)


@dataclass(frozen=True, slots=True)
class Roles:
    """Which columns become what of a record. Those of key and timestamp are part of the value, too."""

    key: str | None = None
    timestamp: str | None = None
    headers: str | None = None

    def check(self, columns: Mapping[str, pl.DataType], topic: str) -> None:
        for what, name in (("key", self.key), ("timestamp", self.timestamp), ("headers", self.headers)):
            if name is not None and name not in columns:
                hint = f"name one of their columns: {', '.join(columns)}"
                raise DeclarationError(f"topic {topic!r}: {what}={name!r} isn't a column of the rows", hint=hint)
        if self.timestamp is not None and not isinstance(columns[self.timestamp], pl.Datetime):
            said = f"topic {topic!r}: timestamp={self.timestamp!r} is of type {columns[self.timestamp]}"
            raise DeclarationError(said, hint="name a column of type Datetime")
        if self.headers is not None and columns[self.headers] != HEADERS:
            said = f"topic {topic!r}: headers={self.headers!r} is of type {columns[self.headers]}"
            raise DeclarationError(said, hint=f"headers have the type {HEADERS}")
        if self.headers is not None and len(columns) == 1:
            raise DeclarationError(f"topic {topic!r}: the rows have no column but the headers", hint="add a column")


class RecordMaker:
    """Turns rows into records. If ``key_format`` is None, text, numbers and bytes become keys directly."""

    def __init__(self, topic: str, roles: Roles, format: Format, key_format: Format | None) -> None:
        self._topic = topic
        self._roles = roles
        self._format = format
        self._key_format = key_format

    def records(self, rows: pl.DataFrame, limit: int) -> pl.DataFrame:
        """Key, value, timestamp (ms) and headers. Raises ``DataError`` if they may have more than ``limit`` bytes."""
        roles = self._roles
        roles.check(rows.schema, self._topic)
        contents = rows if roles.headers is None else rows.drop(roles.headers)
        own = self._format.columns()
        if roles.key is not None and contents.width > 1 and own is not None and (len(own) == 1 or roles.key not in own):
            contents = contents.drop(roles.key)  # a format of other columns, such as text, has the key beside it
        data: dict[str, object] = {"key": self._keys(rows), "value": self._format.encode(contents)}
        records = pl.DataFrame(data, {"key": pl.Binary(), "value": pl.Binary()})
        if roles.timestamp is not None:
            records = records.with_columns(timestamp=rows[roles.timestamp].dt.epoch("ms"))
        if roles.headers is not None:
            records = records.with_columns(headers=rows[roles.headers])
        self._check_sizes(records, limit)
        return records

    def _keys(self, rows: pl.DataFrame) -> pl.Series:
        name = self._roles.key
        if name is None:
            return pl.Series("key", [None], pl.Binary()).new_from_index(0, rows.height)
        column = rows[name]
        if self._key_format is not None:
            keys = pl.Series("key", self._key_format.encode(column.to_frame()), pl.Binary())
            return pl.select(pl.when(column.is_not_null()).then(keys).alias("key")).to_series()
        if column.dtype == pl.Binary():
            return column
        if column.dtype.is_integer() or isinstance(column.dtype, _TEXTS):
            return column.cast(pl.String).cast(pl.Binary)
        raise DeclarationError(
            f"topic {self._topic!r}: key={name!r} is of type {column.dtype}, which has more than one possible text "
            "form",
            hint='choose one with key_format=, such as "json"; or cast the column to String',
        )

    def _check_sizes(self, records: pl.DataFrame, limit: int) -> None:
        size = pl.col("key").bin.size().fill_null(0) + pl.col("value").bin.size().fill_null(0) + OVERHEAD
        if "headers" in records.columns:
            each = pl.element().struct.field("name").str.len_bytes().fill_null(0) + _PER_HEADER
            values = pl.element().struct.field("value").bin.size().fill_null(0)
            size += pl.col("headers").list.eval(each + values).list.sum().fill_null(0)
        largest = cast("int", records.select(size.max()).item() or 0)
        if largest > limit:
            raise DataError(
                f"a row for topic {self._topic!r} becomes a record of about {largest} bytes; the topic takes {limit}",
                hint="send fewer or smaller columns, filter such rows out before send_to, or raise max.message.bytes "
                "of the topic and restart the app",
            )


def identity(pieces: Sequence[pl.DataFrame]) -> str:
    """Return a short text that is the same for the same records, in however many pieces."""
    keys = values = count = 0
    for piece in pieces:
        count += piece.height
        keys = _sum(keys, piece["key"])
        values = _sum(values, piece["value"])
    return f"{count}-{values:08x}-{keys:08x}"


def _sum(before: int, column: pl.Series) -> int:
    data, starts, lengths = layout(column)
    if not lengths.size:
        return before
    return zlib.crc32(data[starts[0] : starts[-1] + lengths[-1]].data, before)


def headers_of(column: pl.Series) -> Iterator[list[tuple[str, bytes | None]]]:
    for row in column.to_list():
        yield [(one["name"] or "", one["value"]) for one in row or ()]
