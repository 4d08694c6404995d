"""Formats of records in brokers: what the bytes of a payload mean. ``contract`` says what a format is."""

from __future__ import annotations

from headrace.serdes.formats.contract import Decoded, Decoder, Format, FormatSpec, Payload
from headrace.serdes.formats.opening import open_format

__all__ = ["Decoded", "Decoder", "Format", "FormatSpec", "Payload", "open_format"]
