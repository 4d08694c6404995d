"""Bytes: each payload is the only column, unchanged."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.dtypes import Columns, written
from headrace.serdes.formats.contract import Decoded, Decoder, Format, Payload, all_values, without_nulls

VALUE = "value"
"""The column, if no schema names it."""


class RawFormat(Format):
    """Bytes."""

    @override
    def columns(self) -> Columns:
        return {VALUE: pl.Binary()}

    @override
    def decoder(self, columns: Columns) -> Decoder:
        return _RawDecoder(only_column("bytes", columns, pl.Binary()))

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        return only_values("bytes", rows, pl.Binary()).to_list()


class _RawDecoder(Decoder):
    def __init__(self, name: str) -> None:
        self._name = name

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        if not all_values(payloads):
            return without_nulls(payloads, self.decode)
        return Decoded(pl.Series(self._name, payloads, dtype=pl.Binary).to_frame())


def only_column(format: str, columns: Columns, dtype: pl.DataType) -> str:
    """The name of the only column. Raises ``DeclarationError`` if there are others, or it has another type."""
    if list(columns.values()) != [dtype]:
        found = ", ".join(f"{name}: {written(other)}" for name, other in columns.items()) or "none"
        raise DeclarationError(
            f'records with format="{format}" have one column of type {written(dtype)}; the schema has {found}',
            hint=f'write schema={{"{VALUE}": pl.{dtype}}}, or name another format',
        )
    return next(iter(columns))


def only_values(format: str, rows: pl.DataFrame, dtype: pl.DataType) -> pl.Series:
    """The values to write. Raises ``DataError`` if the rows have other columns, or a value is missing."""
    if list(rows.dtypes) != [dtype]:
        found = ", ".join(f"{name}: {written(other)}" for name, other in rows.schema.items())
        raise DataError(
            f'records with format="{format}" have one column of type {written(dtype)}; the rows have {found}',
            hint="select that column before send_to",
        )
    values = rows.to_series()
    if values.null_count():
        raise DataError(
            f'column {values.name!r}: a value is null, and format="{format}" can\'t write that',
            hint='filter such rows out, or use format="json"',
        )
    return values
