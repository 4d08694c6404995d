"""Arguments that inputs from brokers share: where they begin, and the columns of their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import polars as pl

from headrace.api.rows import SchemaLike
from headrace.core.errors import DeclarationError, UsageError
from headrace.core.moment import moment_ms, parse_moment
from headrace.serdes.casting import CastSafety, cast_safety
from headrace.serdes.dtypes import Columns, written
from headrace.serdes.formats import FormatSpec, open_format
from headrace.serdes.schema import Schema

_WORDS = {
    "latest": "upcoming",
    "LATEST": "upcoming",
    "end": "upcoming",
    "TRIM_HORIZON": "oldest",
    "earliest": "oldest",
    "beginning": "oldest",
}


def start_of(start: object) -> str | int:
    """Return the meaning of ``start=``: an edge, or milliseconds since the epoch. Raises ``DeclarationError``."""
    if start in ("oldest", "upcoming"):
        return str(start)
    if (time_ms := time_of(start)) is not None:
        return time_ms
    meant = _WORDS.get(start, "") if isinstance(start, str) else ""
    raise DeclarationError(
        f"start={start!r} is not a valid start",
        hint=f'did you mean "{meant}"?' if meant else 'write "oldest", "upcoming", or a time: "2026-01-31T12:00:00Z"',
    )


def time_of(time: object) -> int | None:
    """Return a time in milliseconds since the epoch; None if the value isn't a time."""
    if isinstance(time, datetime):
        return moment_ms(time)
    if isinstance(time, str) and time not in _WORDS:
        try:
            return parse_moment(time)[0]
        except UsageError:
            return None
    return None


def record_columns_of(columns: object, service: str, known: Sequence[str], example: str) -> dict[str, str]:
    """Return the columns of ``record_columns=``. Raises ``DeclarationError`` for metadata that records don't have."""
    if columns is None:
        return {}
    example = f"write record_columns={example}"
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) and name for name in columns):
        raise DeclarationError(f"record_columns={columns!r} doesn't name columns", hint=example)
    for name, what in columns.items():
        if what not in known:
            swapped = name in known
            raise DeclarationError(
                f"record_columns: {name!r} asks for {what!r}, which {service} doesn't have for a record",
                hint=f"the column comes first: {example}" if swapped else f"it has {', '.join(known)}",
            )
    return dict(columns)


def input_schema(
    stream: str, service: str, format: FormatSpec, about: Columns, what: Mapping[str, str], schema: SchemaLike | None
) -> Schema:
    """Return the columns of an input: those of the format, otherwise of ``schema``, and those ``about`` records.

    ``what`` names the metadata in each of the latter, for messages.
    """
    declared = _declared(stream, format, about, schema)
    for name in about.keys() & declared.columns.keys():
        _check_type(name, what[name], about[name], declared.columns[name])
    contents = {name: dtype for name, dtype in declared.columns.items() if name not in about}
    if not contents:
        raise DeclarationError(
            f"the schema of {stream} has no column from the record itself, only what {service} adds to it",
            hint="add at least one column",
        )
    open_format(format).decoder(contents)
    missing = {name: dtype for name, dtype in about.items() if name not in declared.columns}
    if missing and declared.record is not None:
        names = ", ".join(missing)
        raise DeclarationError(
            f"record_columns: the dataclass {declared.record.__name__} has no field {names}",
            hint="add it to the dataclass, or give the schema as a dict",
        )
    return Schema.of({**declared.columns, **missing}) if missing else declared


def _declared(stream: str, format: FormatSpec, about: Columns, schema: SchemaLike | None) -> Schema:
    if schema is not None:
        return Schema.of(schema)
    own = open_format(format).columns()
    if own is None:
        raise DeclarationError(
            f"an input of JSON from {stream} needs a schema",
            hint='write app.input("orders", {"member": pl.String, "ts": pl.Datetime("ms")}, ...), or '
            'format="text" for whole records',
        )
    if both := sorted(about.keys() & own.keys()):
        raise DeclarationError(
            f"record_columns: a record of {stream} has a column {both[0]!r} already", hint="give it another name"
        )
    return Schema.of({**own, **about})


def _check_type(name: str, what: str, known: pl.DataType, declared: pl.DataType) -> None:
    if cast_safety(known, declared) not in (CastSafety.SAME, CastSafety.LOSSLESS):
        raise DeclarationError(
            f"column {name!r} is the {what} of a record, which is of type {written(known)}, not {written(declared)}",
            hint="declare it so, or leave it out of the schema",
        )
