"""Text: each payload is a text in UTF-8, which becomes the only column."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from typing_extensions import override

from headrace.serdes.dtypes import Columns
from headrace.serdes.formats.contract import Decoded, Decoder, Format, Payload, decode_halving
from headrace.serdes.formats.raw import VALUE, only_column, only_values
from headrace.serdes.row_pieces import RowsUnreadable


class TextFormat(Format):
    """Texts."""

    @override
    def columns(self) -> Columns:
        return {VALUE: pl.String()}

    @override
    def decoder(self, columns: Columns) -> Decoder:
        return _TextDecoder(columns, only_column("text", columns, pl.String()))

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        return only_values("text", rows, pl.String()).cast(pl.Binary).to_list()


class _TextDecoder(Decoder):
    def __init__(self, columns: Columns, name: str) -> None:
        self._columns = columns
        self._name = name

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        return decode_halving(payloads, self._columns, self._parse, lambda payload, reason: reason)

    def _parse(self, payloads: Sequence[bytes]) -> pl.DataFrame:
        try:
            return pl.Series(self._name, payloads, dtype=pl.Binary).cast(pl.String).to_frame()
        except pl.exceptions.ComputeError as error:
            raise RowsUnreadable("not UTF-8") from error
