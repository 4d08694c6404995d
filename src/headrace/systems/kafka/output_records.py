"""Rows on their way into a topic, as records. Columnar; pure but for what formats ask for.

Rows become records before their commit. What Kafka can't take stops the app while another version of it can still drop
it. The outbox keeps the records, so a version that is published again has exactly the same ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import polars as pl

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.formats import Format
from headrace.serdes.headers import HEADERS
from headrace.serdes.kafka_partitioning import layout

OVERHEAD = 512
"""The most that a record has beyond its key, value and headers: Kafka's own, and our headers."""
_PER_HEADER = 12
_DATA = {"key": pl.Binary(), "value": pl.Binary()}
_TEXTS = (pl.String, pl.Categorical, pl.Enum)


@dataclass(frozen=True, slots=True)
class Roles:
    """Which columns become what of a record. Those of key and timestamp are part of the value, too."""

    key: str | None = None
    timestamp: str | None = None
    headers: str | None = None

    def check(self, columns: Mapping[str, pl.DataType], topic: str) -> None:
        """Raise ``DeclarationError`` unless rows of these columns have what is needed."""
        for what, name in (("key", self.key), ("timestamp", self.timestamp), ("headers", self.headers)):
            if name is not None and name not in columns:
                raise DeclarationError(
                    f"topic {topic!r}: {what}={name!r} isn't a column of the rows",
                    hint=f"name one of their columns: {', '.join(columns)}",
                )
        if self.timestamp is not None and not isinstance(columns[self.timestamp], pl.Datetime):
            raise DeclarationError(
                f"topic {topic!r}: timestamp={self.timestamp!r} is of type {columns[self.timestamp]}",
                hint="name a column of type Datetime",
            )
        if self.headers is not None and columns[self.headers] != HEADERS:
            raise DeclarationError(
                f"topic {topic!r}: headers={self.headers!r} is of type {columns[self.headers]}",
                hint=f"headers have the type {HEADERS}",
            )
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
        """Return the records of rows: ``key`` and ``value``, and ``timestamp`` (ms) and ``headers`` if there are any.

        Raises ``DataError`` if one can't be made, or may be larger than ``limit`` bytes.
        """
        roles = self._roles
        roles.check(rows.schema, self._topic)
        contents = rows if roles.headers is None else rows.drop(roles.headers)
        own = self._format.columns()
        if roles.key is not None and contents.width > 1 and own is not None and (len(own) == 1 or roles.key not in own):
            contents = contents.drop(roles.key)  # a format of other columns, such as text, has the key beside it
        data: dict[str, object] = {"key": self._keys(rows), "value": self._format.encode(contents)}
        records = pl.DataFrame(data, _DATA)
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
            return pl.DataFrame([keys, column.is_null().alias("nothing")]).select(
                pl.when(~pl.col("nothing")).then("key").alias("key")
            )["key"]
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


Header = tuple[str, bytes | None]


def headers_of(column: pl.Series) -> Iterator[list[Header]]:
    """Yield the headers of each record as Kafka's client takes them."""
    for row in column.to_list():
        yield [(one["name"] or "", one["value"]) for one in row or ()]
