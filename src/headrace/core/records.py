"""Reading small durable records: JSON that begins with the number of its format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from headrace.core.errors import DataError

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that aren't what was expected: its own errors, and two of Python's, for text that isn't
UTF-8 and for JSON that is nested too deeply."""


class _Record(Protocol):
    @property
    def format(self) -> int: ...


T = TypeVar("T", bound=_Record)


def decode_record(
    decoder: msgspec.json.Decoder[T], data: bytes, what: str, known: int, named: Callable[[T], str] | None = None
) -> T:
    """Read a record of the format ``known``. Raises ``DataError`` if it is of another one, or can't be read.

    ``what`` names the record in errors; ``named`` gives a more precise name from its contents.
    """
    try:
        record = decoder.decode(data)
    except UNREADABLE as error:
        raise DataError(f"{what} is unreadable: {error}: {data[:200]!r}") from error
    if record.format != known:
        raise DataError(
            f"{what if named is None else named(record)} is of format {record.format}; this version of Headrace reads "
            f"{known}",
            hint="use the Headrace that wrote it, or a newer one",
        )
    return record
