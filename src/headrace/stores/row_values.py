"""The non-key columns of a row as one compact value, encoded and decoded for all rows of a batch at once.

    format u8 (1) | layout u8 | one bit a column, 1: not null | columns of fixed width | lengths u32 | bytes

Everything is little-endian. ``layout`` is the number of the list of columns that the row was written with; ``table``
keeps these lists. Strings are UTF-8, nested values MessagePack. A null has zeros, or no bytes, for its value. The form
is durable: tests hold golden bytes.

Example, with columns (Int16, String) as layout 0: ``(5, "ab")`` is ``01 00 | 03 | 05 00 | 02 00 00 00 | 61 62``, and
``(None, "ab")`` is ``01 00 | 02 | 00 00 | 02 00 00 00 | 61 62``.

Pure. There is no Python code per row, except for nested values; numpy and Arrow make the ``bytes`` objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.core.errors import CorruptLogError, DataError
from headrace.stores.binary_columns import Rows, Words, from_bytes, from_words, join_rows, to_bytes, to_words, words_of

FORMAT = 1
LAYOUTS_MAX = 256

_LENGTH_MAX = (1 << 32) - 1


class ValueEncoding:
    """Encodes values of some columns in a fixed order, which have the layout ``number``."""

    def __init__(self, columns: Mapping[str, pl.DataType], number: int) -> None:
        self.columns = dict(columns)
        self.number = number
        self._is_bytes = [words_of(dtype) is None for dtype in columns.values()]
        fields = [("format", "u1"), ("layout", "u1")]
        fields += [(f"nulls {n}", "u1") for n in range(-(-len(columns) // 8))]
        for place, dtype in enumerate(columns.values()):
            fields += [(f"{place}.{n}", format_) for n, format_ in enumerate(words_of(dtype) or ())]
        fields += [(f"length {place}", "<u4") for place, is_bytes in enumerate(self._is_bytes) if is_bytes]
        self._record = np.dtype(fields)

    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        """Return one value for each row. The rows must have the columns with their types; others are ignored."""
        record = np.zeros(rows.height, self._record)
        record["format"], record["layout"] = FORMAT, self.number
        parts: list[Words | pa.LargeBinaryArray] = [record]
        for place, name in enumerate(self.columns):
            series = rows.get_column(name)
            bit = np.uint8(1 << place % 8)
            record[f"nulls {place // 8}"] |= bit * series.is_not_null().to_numpy() if series.null_count() else bit
            if not self._is_bytes[place]:
                for number, word in enumerate(to_words(series)):
                    record[f"{place}.{number}"] = word
                continue
            array = to_bytes(series)
            lengths = np.diff(np.frombuffer(array.buffers()[1], np.int64)[: len(array) + 1])
            if lengths.max(initial=0) > _LENGTH_MAX:
                raise DataError(
                    f"column {name!r}: a value has {lengths.max()} bytes; a state store takes at most 4 GiB",
                    hint="store the value elsewhere, and keep only a reference here",
                )
            record[f"length {place}"] = lengths
            parts.append(array)
        return join_rows(parts)

    def decode(self, values: Sequence[bytes]) -> pl.DataFrame:
        """Return the columns of encoded values, which all have this layout."""
        rows = Rows(values)
        record = rows.record(self._record)
        columns = []
        for place, (name, dtype) in enumerate(self.columns.items()):
            present = (record[f"nulls {place // 8}"] & np.uint8(1 << place % 8)) != 0
            valid = None if present.all() else present
            if self._is_bytes[place]:
                array = rows.until(rows.at + record[f"length {place}"].astype(np.int64))
                columns.append(from_bytes(name, dtype, array, valid))
            elif dtype == pl.Null:
                columns.append(pl.Series(name, [None] * len(values), pl.Null))
            else:
                words = [record[f"{place}.{number}"] for number in range(len(words_of(dtype) or ()))]
                columns.append(from_words(name, dtype, words, valid))
        return pl.DataFrame(columns) if columns else pl.DataFrame(height=len(values))


def layouts_of(values: Sequence[bytes]) -> Words:
    """Return the layout number of each value. Raises ``CorruptLogError`` for a value of an unknown format."""
    heads = np.frombuffer(b"".join([value[:2] for value in values]), np.uint8)
    if heads.size != 2 * len(values) or np.any(heads[0::2] != FORMAT):
        found = next(value[:2] for value in values if len(value) < 2 or value[0] != FORMAT)
        raise CorruptLogError(
            f"a stored row begins with {found!r}; this version of Headrace reads format {FORMAT}",
            hint="a newer version of Headrace wrote it; upgrade this one",
        )
    return heads[1::2]
