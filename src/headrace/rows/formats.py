"""Formats of records in brokers: what the bytes of a payload mean, each one row.

A ``FormatSpec`` names a format: frozen data, and part of a ``SystemSpec``. All formats read many payloads at once.

**Json.** Each payload is one object. A missing field is null, and other fields are ignored.

**Bytes, text.** Each payload is the only column, unchanged or as a text in UTF-8.

**Changelog.** Records of another format, and records without a value, which delete what has their key. A column says
which rows are deletions. Their other columns are null, as the record says nothing more; its key is for the system to
add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard, cast

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError
from headrace.core.files import UNREADABLE
from headrace.core.plug_ins import all_points, loaded, plug_in
from headrace.rows.dtypes import Columns, written
from headrace.rows.pieces import Parse, RowsUnreadable, readable_rows
from headrace.rows.text import encode_lines, from_wire, readable, why_unreadable, wire_columns

Payload = bytes | None  # the value of a record; None if it has none (in Kafka a tombstone: it deletes what has its key)
NO_VALUE = "no value, which deletes its key; hr.io.changelog(...) reads such records"


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """A format by its name, its schema if it has one, and what else it needs: JSON types only, and no secrets."""

    name: str = "json"
    schema: Mapping[str, Any] | Sequence[Any] | str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def options(self) -> dict[str, Any]:
        """What ``FormatSpec(**options)`` makes the same one of."""
        schema = {} if self.schema is None else {"schema": self.schema}
        return {"name": self.name} | schema | ({"settings": dict(self.settings)} if self.settings else {})

    def under(self, subject: str) -> FormatSpec:
        """The same format, with schemas under ``subject`` in its registry. It may have none, or name another itself."""
        settings = dict(self.settings)
        if "format" in settings:
            settings["format"] = FormatSpec(**settings["format"]).under(subject).options()
        elif "registry" in settings:
            settings.setdefault("subject", subject)
        return replace(self, settings=settings)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of the good payloads, in order; of each bad one its index and the reason, in order. ``skipped`` are the
    indices of payloads that say nothing, about which no policy is asked."""

    frame: pl.DataFrame
    bad: Sequence[tuple[int, str]] = ()
    skipped: Sequence[int] = ()


class Decoder(Protocol):
    """Reads payloads as rows of certain columns. One thread uses it."""

    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        """One row for each payload that can be decoded. Never raises because of a payload's contents.

        What None means is up to the format. Raises an error that may be retried (``UnavailableError``) if something
        outside is needed, such as a schema registry, and doesn't answer: call again with the same payloads. It waits
        for a second at most, and needs no pause between calls.
        """


class Format(Protocol):
    """A format of records."""

    def columns(self) -> Columns | None:
        """The columns that the format says by itself; None if only a schema can say them."""

    def decoder(self, columns: Columns) -> Decoder:
        """A decoder to rows of these columns. Raises ``DeclarationError`` if the format can't have them."""

    def encode(self, rows: pl.DataFrame) -> Sequence[Payload]:
        """One payload for each row. Raises ``DataError`` if the format can't have the columns or a value. None is for a
        row that says that its key is deleted, of formats with ``deletes``. May raise as ``decode`` does."""

    @property
    def deletes(self) -> bool:
        """Whether a payload may be None: not all systems can take that."""
        return False


def decode_halving(
    payloads: Sequence[Payload],
    columns: Columns,
    parse: Callable[[Sequence[bytes]], pl.DataFrame],
    explain: Callable[[bytes, str], str],
) -> Decoded:
    """Parse all payloads at once; if that fails, halve them until the bad ones are isolated. None is bad. ``parse``
    raises ``RowsUnreadable``; ``explain`` says what is wrong with one payload, given what ``parse`` said."""
    if not all_values(payloads):
        return without_nulls(payloads, lambda values: decode_halving(values, columns, parse, explain))
    frames, bad = readable_rows(payloads, parse) if payloads else ([], [])
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=columns)
    return Decoded(frame, [(row.index, explain(row.raw, row.reason)) for row in bad])


def all_values(payloads: Sequence[Payload]) -> TypeGuard[Sequence[bytes]]:
    return all(payloads) or None not in payloads  # all() is the faster one, and an empty payload is rare


def without_nulls(payloads: Sequence[Payload], decode: Callable[[Sequence[bytes]], Decoded]) -> Decoded:
    """Decode those that aren't None; the others are bad."""
    null = nulls(payloads)
    places = np.flatnonzero(null)
    decoded = decode([payload for payload in payloads if payload is not None])
    none = Decoded(decoded.frame.clear(), [(index, NO_VALUE) for index in range(len(places))])
    return gathered([(np.flatnonzero(~null), decoded), (places, none)])


def nulls(payloads: Sequence[Payload]) -> npt.NDArray[np.bool_]:
    return np.fromiter((payload is None for payload in payloads), dtype=bool, count=len(payloads))


def gathered(parts: Sequence[tuple[npt.NDArray[np.int64], Decoded]]) -> Decoded:
    """Combine one or more parts, each with the places of its payloads among all payloads, and its decoded rows."""
    bad: list[tuple[int, str]] = []
    skipped: list[int] = []
    kept = []
    for places, decoded in parts:
        wrong = [index for index, _ in decoded.bad]
        bad += zip(places[wrong].tolist(), [reason for _, reason in decoded.bad], strict=True)
        skipped += places[list(decoded.skipped)].tolist()
        kept.append(np.delete(places, [*wrong, *decoded.skipped]))
    frame = pl.concat([decoded.frame for _, decoded in parts])
    return Decoded(frame[np.argsort(np.concatenate(kept))], sorted(bad), sorted(skipped))


def json_parser(columns: Columns) -> Parse:
    wire = wire_columns(columns)
    empty = pl.DataFrame(schema=columns)

    def parse(data: bytes) -> pl.DataFrame:
        if not data.strip():
            return empty
        try:
            return from_wire(pl.read_ndjson(data, schema=wire), columns)
        except pl.exceptions.PolarsError as error:
            raise RowsUnreadable(why_unreadable(error)) from error

    return parse


class JsonFormat(Format):
    """JSON objects."""

    @override
    def columns(self) -> None:
        return None

    @override
    def decoder(self, columns: Columns) -> Decoder:
        return _JsonDecoder(columns)

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        return encode_lines(rows).splitlines() if rows.height else []


class _JsonDecoder(Decoder):
    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._parse_lines = json_parser(columns)

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        return decode_halving(payloads, self._columns, self._parse, self._explain)

    def _parse(self, payloads: Sequence[bytes]) -> pl.DataFrame:
        # A line has one object, or can't be read. So only an empty payload can make the count of rows wrong. Line
        # breaks become carriage returns: between values that is the same to JSON, and inside a text both are refused.
        data = b"\n".join(payloads)
        if data.count(b"\n") >= len(payloads):
            data = b"\n".join([payload.replace(b"\n", b"\r") for payload in payloads])
        return self._parse_lines(data)

    def _explain(self, payload: bytes, reason: str) -> str:
        if not payload.strip():
            return "empty"
        try:
            value = msgspec.json.decode(payload)
        except UNREADABLE as error:
            return readable(error)
        if not isinstance(value, dict):
            return f"a JSON {_JSON_NAMES.get(type(value), 'number')}, not an object"
        for name, dtype in self._columns.items():
            if name in value:
                try:
                    json_parser({name: dtype})(msgspec.json.encode({name: value[name]}))
                except RowsUnreadable as error:
                    return f"field {name!r}: {error}"
        return reason


_JSON_NAMES = {list: "array", str: "text", bool: "boolean", type(None): "null"}
VALUE = "value"  # the column, if no schema names it


class _OneColumn(Format):
    """Payloads that are values of one type, in UTF-8 if that is text."""

    def __init__(self, name: str, dtype: pl.DataType) -> None:
        self._name = name
        self._dtype = dtype

    @override
    def columns(self) -> Columns:
        return {VALUE: self._dtype}

    @override
    def decoder(self, columns: Columns) -> Decoder:
        if list(columns.values()) != [self._dtype]:
            raise DeclarationError(
                f"{self._wanted()}; the schema has {_in_words(columns) or 'none'}",
                hint=f'write schema={{"{VALUE}": pl.{self._dtype}}}, or name another format',
            )
        return _OneColumnDecoder(next(iter(columns)), self._dtype)

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        if rows.dtypes != [self._dtype]:
            raise DataError(
                f"{self._wanted()}; the rows have {_in_words(rows.schema)}", hint="select that column before send_to"
            )
        values = rows.to_series()
        if values.null_count():
            raise DataError(
                f'column {values.name!r}: a value is null, and format="{self._name}" can\'t write that',
                hint='filter such rows out, or use format="json"',
            )
        return values.cast(pl.Binary).to_list()

    def _wanted(self) -> str:
        return f'records with format="{self._name}" have one column of type {written(self._dtype)}'


class _OneColumnDecoder(Decoder):
    def __init__(self, name: str, dtype: pl.DataType) -> None:
        self._name = name
        self._dtype = dtype

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        return decode_halving(payloads, {self._name: self._dtype}, self._parse, lambda payload, reason: reason)

    def _parse(self, payloads: Sequence[bytes]) -> pl.DataFrame:
        try:
            return pl.Series(self._name, payloads, dtype=pl.Binary).cast(self._dtype).to_frame()
        except pl.exceptions.ComputeError as error:
            raise RowsUnreadable("not UTF-8") from error


def _in_words(columns: Columns) -> str:
    return ", ".join(f"{name}: {written(dtype)}" for name, dtype in columns.items())


class _ChangelogFormat(Format):
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
    """The columns of the records themselves. Raises ``DeclarationError`` unless the other says what is deleted."""
    found = columns.get(deleted)
    if found != pl.Boolean:
        there = "is missing in the schema" if found is None else f"is of type {written(found)} in the schema, not bool"
        raise DeclarationError(
            f"the column {deleted!r}, which marks deletions, {there}",
            hint=f'add "{deleted}": pl.Boolean to the schema, and write deleted="{deleted}" in the table',
        )
    return {name: dtype for name, dtype in columns.items() if name != deleted}


GROUP = "headrace.formats"  # the group of entry points that make a ``Format`` of a ``FormatSpec``

_PLAIN: Mapping[str, Format] = {
    "json": JsonFormat(), "text": _OneColumn("text", pl.String()), "bytes": _OneColumn("bytes", pl.Binary())
}  # fmt: skip


def open_format(spec: FormatSpec) -> Format:
    """The format that ``spec`` names; raises ``DeclarationError`` for an unknown one. Fetches nothing yet."""
    if spec.name in _PLAIN:
        return _PLAIN[spec.name]
    if spec.name == "changelog":
        return _ChangelogFormat(inner_format(spec), spec.settings["deleted"])
    opener = plug_in(GROUP, spec.name)
    if opener is None:
        known = ", ".join([*_PLAIN, "changelog", *sorted(all_points(GROUP))])
        raise DeclarationError(f"unknown format {spec.name!r} of records", hint=f"known formats: {known}")
    return cast("Callable[[FormatSpec], Format]", loaded(opener))(spec)


def inner_format(spec: FormatSpec) -> Format:
    return open_format(FormatSpec(**spec.settings["format"]))
