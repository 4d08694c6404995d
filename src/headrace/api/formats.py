"""Formats of a broker's records: the words for ``format=``, and ``changelog`` around another format."""

from __future__ import annotations

from typing import Any, Literal

from headrace.api.checks import Declaring, one_of
from headrace.core.errors import DeclarationError
from headrace.rows.formats import FormatSpec, open_format

FormatName = Literal["json", "text", "bytes"]


def changelog(format: FormatName | FormatSpec = "json", *, deleted: str = "deleted") -> FormatSpec:
    """Records of a table: rows in another ``format``, and records without a value, which delete the row of their key.

    A record without a value, in Kafka a tombstone, becomes a row whose Boolean column ``deleted`` is true and whose
    other columns are null, except those that the system adds, such as its key. In an output, a row whose ``deleted`` is
    true becomes such a record. If the input declares a schema, it must have this column. Kinesis has no records without
    a value.

    Examples
    --------
    >>> hr.io.changelog("json", deleted="gone").settings
    {'format': {'name': 'json'}, 'deleted': 'gone'}
    """
    with Declaring("changelog"):
        return opened_format(FormatSpec("changelog", settings=around(format, deleted)))


def around(format: object, deleted: object) -> dict[str, Any]:
    """The settings of a format around another one."""
    if not isinstance(deleted, str) or not deleted:
        raise DeclarationError(f"deleted={deleted!r} is not the name of a column", hint='write deleted="deleted"')
    inner = format_of(format)
    if "format" in inner.settings:
        raise DeclarationError(f"{inner.name} already has a column for deletions", hint="wrap it around a plain format")
    return {"format": inner.options(), "deleted": deleted}


def opened_format(spec: FormatSpec) -> FormatSpec:
    """Return the format if it is valid."""
    open_format(spec)
    return spec


def format_of(format: object) -> FormatSpec:
    """The format that ``format=`` means. Raises ``DeclarationError``."""
    if isinstance(format, FormatSpec):
        return format
    if not isinstance(format, str):
        raise DeclarationError(f"format={format!r} is not a format of records", hint='write format="json"')
    if format == "avro":
        raise DeclarationError("Avro needs a schema to read with", hint="write format=hr.io.avro(schema)")
    return FormatSpec(one_of("format", format, FormatName))
