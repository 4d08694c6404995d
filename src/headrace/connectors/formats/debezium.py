"""Debezium's envelopes: a record says what a row was before a change and is after it, and what the change is.

A row is what it says after the change, and of a deletion what it says before. A column says which rows are deletions.
A record without a value, which Debezium sends after each deletion for compaction, says nothing more and is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError
from headrace.rows import formats
from headrace.rows.dtypes import Columns, written
from headrace.rows.formats import Decoded, Decoder, Format, FormatSpec, Payload

About = Literal["op", "ts_ms", "source_ts_ms"]
ABOUT: Mapping[str, pl.DataType] = {"op": pl.String(), "ts_ms": pl.Int64(), "source_ts_ms": pl.Int64()}
"""What an envelope says of a change, and its type: when Debezium saw it, and when the database made it."""
_PAYLOAD = "payload"
_JSON = ("json", "json_schema")
_CHANGES = ("c", "u", "r", "d")


class DebeziumFormat(Format):
    """Envelopes in records of ``inner``. ``about`` names columns, and what of ``ABOUT`` they say.

    With ``wrapped``, an envelope may also be in the field ``payload``, as Kafka Connect writes JSON with its schema.
    """

    def __init__(self, inner: Format, deleted: str, about: Mapping[str, str], *, wrapped: bool) -> None:
        self._inner = inner
        self._deleted = deleted
        self._about = about
        self._wrapped = wrapped

    @override
    def columns(self) -> Columns | None:
        own = self._inner.columns()
        if own is None:
            return None
        after = own.get("after")
        if not isinstance(after, pl.Struct):
            found = "none" if after is None else f"one of type {written(after)}"
            raise DeclarationError(
                "the schema doesn't describe a Debezium envelope: it needs a field 'after' with a row, but has "
                f"{found}",
                hint="give the schema of the whole record, or use the plain format without debezium(...)",
            )
        row = {one.name: one.dtype for one in after.fields}
        for name in self._about.keys() & row.keys():
            hint = "choose another name for the column of the envelope"
            raise DeclarationError(f"a row has a column {name!r} already", hint=hint)
        about = {name: ABOUT[what] for name, what in self._about.items()}
        return formats.with_flag({**row, **about}, self._deleted)  # type: ignore[dict-item]

    @override
    def decoder(self, columns: Columns) -> Decoder:
        rest = formats.without_flag(columns, self._deleted)
        for name, what in self._about.items():
            if columns.get(name, ABOUT[what]) != ABOUT[what]:
                raise DeclarationError(
                    f"column {name!r} is the {what} of an envelope, of type {written(ABOUT[what])}, "
                    f"not {written(columns[name])}",
                    hint="declare it with this type, or leave it out of the schema",
                )
        row = {name: dtype for name, dtype in rest.items() if name not in self._about}
        if not row:
            raise DeclarationError("the schema has no column of the row itself", hint="add at least one column")
        about = {name: what for name, what in self._about.items() if name in columns}
        return _DebeziumDecoder(self._inner, columns, row, self._deleted, about, wrapped=self._wrapped)

    @override
    def encode(self, rows: pl.DataFrame) -> Sequence[Payload]:
        hint = "write changes with format=hr.io.changelog(...)"
        raise DataError("Debezium envelopes can be read, but not written", hint=hint)


class _DebeziumDecoder(Decoder):
    def __init__(
        self, inner: Format, columns: Columns, row: Columns, deleted: str, about: Mapping[str, str], *, wrapped: bool
    ) -> None:
        envelope = {"op": pl.String(), "before": pl.Struct(row), "after": pl.Struct(row)}
        for what in about.values():
            envelope |= {"source": pl.Struct({"ts_ms": pl.Int64()})} if what == "source_ts_ms" else {what: ABOUT[what]}
        read = {**envelope, _PAYLOAD: pl.Struct(envelope)} if wrapped else envelope
        self._decoder = inner.decoder(read)
        self._columns = columns
        self._row = list(row)
        self._deleted = deleted
        self._about = about
        self._envelope = [_unwrapped(name) if wrapped else pl.col(name) for name in envelope]

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        if formats.all_values(payloads):
            return self._decode(payloads)
        null = formats.nulls(payloads)
        places = np.flatnonzero(~null)
        decoded = self._decode([payload for payload in payloads if payload is not None])
        bad = [(int(places[index]), reason) for index, reason in decoded.bad]
        return Decoded(decoded.frame, bad, np.flatnonzero(null).tolist())

    def _decode(self, payloads: Sequence[bytes]) -> Decoded:
        decoded = self._decoder.decode(payloads)
        deletes = pl.col("op") == "d"
        row_of = pl.when(deletes).then("before").otherwise("after").alias("row")
        changes = decoded.frame.select(self._envelope).with_columns(row_of)
        wrong = changes.select(_wrong()).to_series()
        bad = list(decoded.bad)
        if wrong.null_count() < len(wrong):
            places = np.delete(np.arange(len(payloads)), [index for index, _ in decoded.bad])
            where = wrong.is_not_null()
            bad += zip(places[where.to_numpy()].tolist(), wrong.drop_nulls().to_list(), strict=True)
            changes = changes.filter(~where)
        inside = {"source_ts_ms": pl.col("source").struct.field("ts_ms")}
        said = [inside.get(what, pl.col(what)).alias(name) for name, what in self._about.items()]
        row = [pl.col("row").struct.field(name) for name in self._row]
        rows = changes.select(*row, *said, deletes.alias(self._deleted))
        return Decoded(rows.select(list(self._columns)), sorted(bad))


def _unwrapped(name: str) -> pl.Expr:
    payload = pl.col(_PAYLOAD)
    return pl.when(payload.is_not_null()).then(payload.struct.field(name)).otherwise(pl.col(name)).alias(name)


def _wrong() -> pl.Expr:
    op = pl.col("op")
    lacking = pl.when(op == "d").then(pl.lit("before")).otherwise(pl.lit("after"))
    return (
        pl.when(op.is_null())
        .then(pl.lit("not a Debezium envelope: it has no field 'op'"))
        .when(~op.is_in(_CHANGES))
        .then(pl.format("the change {} isn't a change of one row", op))
        .when(pl.col("row").is_null())
        .then(pl.format("the change {} has no row: its '{}' is missing", op, lacking))
        .alias("wrong")
    )


def open_debezium(spec: FormatSpec) -> Format:
    settings = spec.settings
    wrapped = settings["format"]["name"] in _JSON
    return DebeziumFormat(formats.inner_format(spec), settings["deleted"], settings.get("about", {}), wrapped=wrapped)
