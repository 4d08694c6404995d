"""Changelogs: records of another format, and records without a value, which delete what has their key.

A column says which rows are deletions. Their other columns are null, as the record says nothing more; its key is for
the system to add.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.dtypes import Columns, written
from headrace.serdes.formats.contract import Decoded, Decoder, Format, Payload, all_values, gathered, nulls


class ChangelogFormat(Format):
    """Records of ``inner``. ``deleted`` is the column that says which are deletions."""

    def __init__(self, inner: Format, deleted: str) -> None:
        self._inner = inner
        self._deleted = deleted

    @override
    def columns(self) -> Columns | None:
        return with_flag(self._inner.columns(), self._deleted)

    @override
    def decoder(self, columns: Columns) -> Decoder:
        rest = without_flag(columns, self._deleted)
        return _ChangelogDecoder(self._inner.decoder(rest), columns, self._deleted)

    @override
    def encode(self, rows: pl.DataFrame) -> Sequence[Payload]:
        if rows.schema.get(self._deleted) != pl.Boolean:
            raise DataError(
                f"the rows have no Boolean column {self._deleted!r} to mark deletions",
                hint=f"add it before send_to: .with_columns({self._deleted}=False)",
            )
        gone = rows[self._deleted].fill_null(False).to_numpy()
        payloads: list[Payload] = [None] * rows.height
        values = self._inner.encode(rows.filter(~gone).drop(self._deleted))
        for index, value in zip(np.flatnonzero(~gone).tolist(), values, strict=True):
            payloads[index] = value
        return payloads

    @property
    @override
    def deletes(self) -> bool:
        return True


class _ChangelogDecoder(Decoder):
    def __init__(self, inner: Decoder, columns: Columns, deleted: str) -> None:
        self._inner = inner
        self._columns = columns
        self._deleted = deleted

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        if all_values(payloads):
            decoded = self._inner.decode(payloads)
            return Decoded(self._flagged(decoded.frame, gone=False), decoded.bad, decoded.skipped)
        null = nulls(payloads)
        decoded = self._inner.decode([payload for payload in payloads if payload is not None])
        values = Decoded(self._flagged(decoded.frame, gone=False), decoded.bad, decoded.skipped)
        deletions = Decoded(self._flagged(pl.DataFrame(schema=self._columns).clear(int(null.sum())), gone=True))
        return gathered([(np.flatnonzero(~null), values), (np.flatnonzero(null), deletions)])

    def _flagged(self, rows: pl.DataFrame, *, gone: bool) -> pl.DataFrame:
        return rows.with_columns(pl.lit(gone).alias(self._deleted)).select(list(self._columns))


def with_flag(columns: Columns | None, deleted: str) -> Columns | None:
    """The columns with the one that says what is deleted. Raises ``DeclarationError`` if they have it already."""
    if columns is None:
        return None
    if deleted in columns:
        raise DeclarationError(
            f"a record already has a column {deleted!r}, so that name can't mark deletions",
            hint='choose another name: deleted="gone"',
        )
    return {**columns, deleted: pl.Boolean()}


def without_flag(columns: Columns, deleted: str) -> Columns:
    """The columns of the records themselves. Raises ``DeclarationError`` unless the others say what is deleted."""
    found = columns.get(deleted)
    if found != pl.Boolean:
        there = "is missing in the schema" if found is None else f"is of type {written(found)} in the schema, not bool"
        raise DeclarationError(
            f"the column {deleted!r}, which marks deletions, {there}",
            hint=f'add "{deleted}": pl.Boolean to the schema, and write deleted="{deleted}" in the table',
        )
    return {name: dtype for name, dtype in columns.items() if name != deleted}
