"""From the name of a format to the format."""

from __future__ import annotations

from headrace.core.errors import DeclarationError
from headrace.serdes.formats.avro import AvroFormat
from headrace.serdes.formats.contract import Format, FormatSpec
from headrace.serdes.formats.json import JsonFormat
from headrace.serdes.formats.raw import RawFormat
from headrace.serdes.formats.text import TextFormat

_PLAIN: dict[str, type[Format]] = {"json": JsonFormat, "text": TextFormat, "bytes": RawFormat}


def open_format(spec: FormatSpec) -> Format:
    """The format that ``spec`` names. Raises ``DeclarationError`` if there is none."""
    if spec.name in _PLAIN:
        return _PLAIN[spec.name]()
    if spec.name == "avro":
        return AvroFormat(spec.schema)
    raise DeclarationError(f"unknown format {spec.name!r} of records", hint="known: json, text, bytes, avro")
