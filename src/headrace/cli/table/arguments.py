"""The arguments of ``get`` and ``scan``: an app, a table, and values of its key as text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import polars as pl

AppOfHome = Annotated[str, typer.Argument(metavar="APP", help="The name of a running app.")]

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A table of the app.")]

Timeout = Annotated[
    str,
    typer.Option("--timeout", metavar="TIME", help="How long to wait for the answer; at most 30s.", show_default=True),
]
TIMEOUT = "5s"

At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Show a table that keeps versions as of this event time: ISO 8601 (UTC by default), or ms since the "
        "epoch.",
    ),
]


def time_of(text: str | None) -> int | datetime | None:
    """Parse a time; None for no text."""
    from headrace.core.errors import UsageError

    if text is None:
        return None
    try:
        return int(text) if text.removeprefix("-").isdecimal() else datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--at {text!r} isn't a time", hint="write 2026-01-31T12:00:00+00:00, or milliseconds since the epoch"
        ) from error


def key_values(columns: Mapping[str, pl.DataType], texts: Sequence[str], table: str) -> list[Any]:
    """Parse one text for each of the first columns of the key.

    Numbers, true and false are written as in JSON, everything else without quotes: times as ISO 8601, binary as base64.
    Raises ``UsageError`` for a text that isn't of its column's type.
    """
    from headrace.core.errors import UsageError

    if len(texts) > len(columns):
        shown = ", ".join(f"{name} ({dtype})" for name, dtype in columns.items())
        raise UsageError(
            f"got {len(texts)} values, but the key of table {table!r} is {shown}",
            hint="give one value for each column of the key, in quotes if it contains spaces",
        )
    return [_value(name, dtype, text, table) for (name, dtype), text in zip(columns.items(), texts, strict=False)]


def next_value(columns: Mapping[str, pl.DataType], first: Sequence[str], text: str | None, table: str) -> Any:
    """Parse a text for the column after the first ones; None for no text."""
    return None if text is None else key_values(columns, [*first, text], table)[-1]


def _value(name: str, dtype: pl.DataType, text: str, table: str) -> Any:
    from headrace.core.errors import UsageError
    from headrace.serdes.json_rows import JsonRows
    from headrace.serdes.row_pieces import RowsUnreadable

    token = json.dumps(text) if not _is_bare(dtype, text) else text
    try:
        return JsonRows({name: dtype}).parse(f"{{{json.dumps(name)}: {token}}}".encode()).to_series()[0]
    except RowsUnreadable as error:
        raise UsageError(
            f"{text!r} isn't a value for column {name!r} of table {table!r}, whose type is {dtype}", hint=_hint(dtype)
        ) from error


def _is_bare(dtype: pl.DataType, text: str) -> bool:
    """Return whether JSON writes the value without quotes: a number or a bool, in a column of such a type."""
    if not (dtype.is_integer() or dtype.is_float() or dtype.is_(_boolean())):
        return False
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, bool) or (isinstance(value, int | float) and math.isfinite(value))


def _boolean() -> pl.DataType:
    import polars as pl

    return pl.Boolean()


def _hint(dtype: pl.DataType) -> str | None:
    import polars as pl

    match dtype:
        case pl.Datetime():
            zone = "+00:00" if dtype.time_zone else ""
            return f"write a time such as 2026-01-31T12:00:00{zone}"
        case pl.Date():
            return "write a date such as 2026-01-31"
        case pl.Time():
            return "write a time of day such as 12:00:00"
        case pl.Duration():
            return "write a duration such as PT90S"
        case pl.Binary():
            return "write binary values as base64"
        case pl.Enum():
            return f"write one of {', '.join(dtype.categories.to_list()[:10])}"
        case pl.Boolean():
            return "write true or false"
        case _:
            return None
