"""What a record of a broker is: the words for ``format=``, and ``avro(...)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from headrace.api.literals import one_of
from headrace.api.location import Declaring
from headrace.core.errors import DeclarationError
from headrace.serdes.formats import FormatSpec, open_format

FormatName = Literal["json", "text", "bytes"]


def avro(schema: Mapping[str, Any] | str) -> FormatSpec:
    """Records in Avro: each is one datum, without a header.

    An input needs no schema then: its columns are the fields. Enumerations become texts, and timestamps
    ``pl.Datetime`` in UTC. Maps and unions, except those with null, can't be columns. Writing needs
    ``pip install "headrace[avro]"``.

    Parameters
    ----------
    schema
        The Avro schema of a record, as a dict or as the text of an ``.avsc`` file.

    Returns
    -------
    FormatSpec
        For ``format=`` of ``kinesis``.

    Examples
    --------
    >>> schema = {
    ...     "type": "record",
    ...     "name": "Order",
    ...     "fields": [{"name": "member", "type": "string"}, {"name": "euros", "type": ["null", "double"]}],
    ... }
    >>> app.input("orders", system=hr.io.kinesis("orders", format=hr.io.avro(schema))).schema
    Schema(member: String, euros: Float64)
    """
    with Declaring("avro"):
        if not isinstance(schema, Mapping | str):
            raise DeclarationError(
                f"schema={schema!r:.80} is not an Avro schema",
                hint="give a dict, or the text of the file: Path('order.avsc').read_text()",
            )
        spec = FormatSpec("avro", schema if isinstance(schema, str) else dict(schema))
        open_format(spec)
        return spec


def format_of(format: object) -> FormatSpec:
    """What ``format=`` means. Raises ``DeclarationError``."""
    if isinstance(format, FormatSpec):
        return format
    if not isinstance(format, str):
        raise DeclarationError(f"format={format!r} is not a format of records", hint='write format="json"')
    if format == "avro":
        raise DeclarationError("Avro needs a schema to read with", hint="write format=hr.io.avro(schema)")
    return FormatSpec(one_of("format", format, FormatName))
