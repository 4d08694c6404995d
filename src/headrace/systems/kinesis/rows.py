"""Records of a shard as rows: what a format makes of their bytes, and what Kinesis says about them as columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from headrace.serdes.formats import Decoded, Decoder
from headrace.systems.kinesis.buffer import Fetched

ABOUT: Mapping[str, pl.DataType] = {
    "partition_key": pl.String(),
    "sequence_number": pl.String(),
    "arrival_time": pl.Datetime("ms"),
    "shard": pl.String(),
}
"""What can be known about a record, and its type."""


class RecordRows:
    """Makes rows of records. ``columns`` names columns of the result, and what of ``ABOUT`` they say."""

    def __init__(self, decoder: Decoder, columns: Mapping[str, str]) -> None:
        self._decoder = decoder
        self._columns = dict(columns)

    def decode(self, shard: str, records: Fetched) -> Decoded:
        """The rows of the good records, and which are bad. Raises an error that may be retried as a decoder does."""
        decoded = self._decoder.decode(records.data)
        if not self._columns:
            return decoded
        about = [_about(kind, shard, records).alias(name) for name, kind in self._columns.items()]
        if decoded.bad:
            good = np.ones(len(records), dtype=bool)
            good[[index for index, _ in decoded.bad]] = False
            mask = pl.Series(good)
            about = [column.filter(mask) for column in about]
        return Decoded(decoded.frame.with_columns(about), decoded.bad)


def _about(kind: str, shard: str, records: Fetched) -> pl.Series:
    match kind:
        case "partition_key":
            return pl.Series(records.keys, dtype=pl.String)
        case "sequence_number":
            return pl.Series(list(map(str, records.sequences)), dtype=pl.String)
        case "arrival_time":
            return pl.Series(records.arrived_ms, dtype=pl.Int64).cast(pl.Datetime("ms"))
        case _:
            return pl.repeat(shard, len(records), dtype=pl.String, eager=True)
