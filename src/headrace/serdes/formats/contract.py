"""What a format of records is: payloads to rows and back, each payload one row.

A broker keeps a record as bytes, and only its users know what they mean. A ``FormatSpec`` names the format; it is
frozen data, and part of a ``SystemSpec``. All formats read many payloads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.serdes.dtypes import Columns
from headrace.serdes.row_pieces import readable_rows

Payload = bytes | None
"""The value of a record; None if it has none (in Kafka a tombstone: it deletes what has its key)."""

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
    """The rows of the good payloads, in order; of each bad one its index and the reason.

    ``skipped`` are the indices of payloads that say nothing, so that they are neither: no policy is asked about them.
    Both are in order.
    """

    frame: pl.DataFrame
    bad: Sequence[tuple[int, str]] = ()
    skipped: Sequence[int] = ()


class Decoder(Protocol):
    """Reads payloads as rows of certain columns. One thread uses it."""

    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        """Return one row for each payload that can be decoded. Never raises because of a payload's contents.

        What None means is up to the format; for most of them it is a bad payload.

        Raises an error that may be retried (``UnavailableError``) if something outside is needed to read them, such as
        a schema registry, and doesn't answer. Nothing was read then: call again with the same payloads, which go on
        where they are until it succeeds. It waits for a second at most, and needs no pause between calls.
        """
        ...


class Format(Protocol):
    """A format of records."""

    def columns(self) -> Columns | None:
        """The columns that the format says by itself; None if only a schema can say them."""
        ...

    def decoder(self, columns: Columns) -> Decoder:
        """Return a decoder to rows of these columns. Raises ``DeclarationError`` if the format can't have them."""
        ...

    def encode(self, rows: pl.DataFrame) -> Sequence[Payload]:
        """Return one payload for each row. Raises ``DataError`` if the format can't have the columns or a value.

        A payload is None for a row that says that its key is deleted. Only formats with ``deletes`` have such rows.
        Raises an error that may be retried as ``decode`` does.
        """
        ...

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
    """Parse all payloads at once; if that fails, halve them until the bad ones are isolated.

    ``parse`` raises ``RowsUnreadable``; ``explain`` says what is wrong with one payload, given what ``parse`` said.
    None is bad.
    """
    if not all_values(payloads):
        return without_nulls(payloads, lambda values: decode_halving(values, columns, parse, explain))
    frames, bad = readable_rows(payloads, parse) if payloads else ([], [])
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=columns)
    return Decoded(frame, [(row.index, explain(row.raw, row.reason)) for row in bad])


def all_values(payloads: Sequence[Payload]) -> TypeGuard[Sequence[bytes]]:
    """Whether none of them is None."""
    return all(payloads) or None not in payloads  # all() is the faster one, and an empty payload is rare


def without_nulls(payloads: Sequence[Payload], decode: Callable[[Sequence[bytes]], Decoded]) -> Decoded:
    """Decode those that aren't None; the others are bad."""
    null = nulls(payloads)
    places = np.flatnonzero(null)
    decoded = decode([payload for payload in payloads if payload is not None])
    none = Decoded(decoded.frame.clear(), [(index, NO_VALUE) for index in range(len(places))])
    return gathered([(np.flatnonzero(~null), decoded), (places, none)])


def nulls(payloads: Sequence[Payload]) -> npt.NDArray[np.bool_]:
    """Which of them are None."""
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
