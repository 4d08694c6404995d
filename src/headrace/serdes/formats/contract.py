"""What a format of records is: payloads to rows and back, each payload one row.

A broker keeps a record as bytes, and only its users know what they mean. A ``FormatSpec`` names the format; it is
frozen data, and part of a ``SystemSpec``. All formats read many payloads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from headrace.serdes.dtypes import Columns
from headrace.serdes.row_pieces import readable_rows


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """A format by its name, and the Avro schema if it has one: JSON types only."""

    name: str = "json"
    schema: Mapping[str, Any] | Sequence[Any] | str | None = None

    def options(self) -> dict[str, Any]:
        """What ``FormatSpec(**options)`` makes the same one of."""
        return {"name": self.name} | ({} if self.schema is None else {"schema": self.schema})


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of the good payloads, in order; of each bad one its index and the reason."""

    frame: pl.DataFrame
    bad: Sequence[tuple[int, str]] = ()


class Decoder(Protocol):
    """Reads payloads as rows of certain columns. One thread uses it."""

    def decode(self, payloads: Sequence[bytes]) -> Decoded:
        """Return one row for each payload that can be read. Never raises because of what is in a payload."""
        ...


class Format(Protocol):
    """A format of records."""

    def columns(self) -> Columns | None:
        """The columns that the format says by itself; None if only a schema can say them."""
        ...

    def decoder(self, columns: Columns) -> Decoder:
        """Return a decoder to rows of these columns. Raises ``DeclarationError`` if the format can't have them."""
        ...

    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        """Return one payload for each row. Raises ``DataError`` if the format can't have the columns or a value."""
        ...


def decode_halving(
    payloads: Sequence[bytes],
    columns: Columns,
    parse: Callable[[Sequence[bytes]], pl.DataFrame],
    explain: Callable[[bytes, str], str],
) -> Decoded:
    """Parse all payloads at once; if that fails, halve them until the bad ones are isolated.

    ``parse`` raises ``RowsUnreadable``; ``explain`` says what is wrong with one payload, given what ``parse`` said.
    """
    frames, bad = readable_rows(payloads, parse) if payloads else ([], [])
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=columns)
    return Decoded(frame, [(row.index, explain(row.raw, row.reason)) for row in bad])
