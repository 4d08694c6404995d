"""Headers of records as a column: a list of names and values for each record."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import polars as pl
import pyarrow as pa

HEADERS = pl.List(pl.Struct({"name": pl.String(), "value": pl.Binary()}))
"""The type of the column."""

Headers = Sequence[tuple[str, bytes | None]] | None


def header_column(records: Sequence[Headers]) -> pl.Series:
    """The headers of each record, in their order. A record without headers has an empty list."""
    given = [one or () for one in records]
    ends = [0, *accumulate(map(len, given))]
    names = pa.array([name for one in given for name, _ in one], pa.large_string())
    values = pa.array([value for one in given for _, value in one], pa.large_binary())
    pairs = pa.StructArray.from_arrays([names, values], ["name", "value"])
    found = pl.from_arrow(pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), pairs))
    assert isinstance(found, pl.Series)
    return found.cast(HEADERS)
