"""The manifest of runs (``stores.runs``): which of them are in the local database, and what a start must know of each.

A run is named by its number; that and the rows of each piece say under which keys its pieces lie
(``stores.pieces``). Numbers aren't used twice: a run that is merged with another one gives way to a new run, and the
manifest that names the new one is written together with it.

Pure but for the reading of what is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
import polars as pl

from headrace.core.errors import CorruptLogError
from headrace.serdes.ipc import concat_rows, decode_rows
from headrace.stores.base import View, Writes

_KEY = b"manifest"
_FORMAT = 4
_FORMATS = (2, 3, _FORMAT)
"""2: without indexes; 3: without slices. What is missing is found missing, and done without."""
_PIECE_OF_FORMAT_1 = struct.Struct(">cQI")


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the rows of each of its pieces, the bounds of its times, and up to which time its rows are gone."""

    number: int
    heights: list[int]
    low: int
    high: int
    gone_to: int | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The runs, oldest first, and the highest bound up to which rows were ever taken."""

    format: int = _FORMAT
    runs: list[RunEntry]
    taken: int | None = None

    @property
    def next_number(self) -> int:
        """A number that no run has."""
        return max((entry.number + 1 for entry in self.runs), default=0)

    def write(self, writes: Writes) -> None:
        """Take the place of the one before."""
        writes.put(_KEY, msgspec.json.encode(self))


class _EntryOfFormat1(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    pieces: int


class ManifestOfFormat1(msgspec.Struct, frozen=True, kw_only=True):
    """What an older Headrace wrote: runs that weren't dealt, nor bounded. They are read whole and written anew."""

    runs: list[_EntryOfFormat1]
    taken: int | None = None

    def keys(self) -> list[bytes]:
        """The keys of all pieces."""
        return [key for entry in self.runs for key in self._keys_of(entry)]

    def read(self, store: str, view: View) -> Iterator[pl.DataFrame]:
        """The rows of each run."""
        for entry in self.runs:
            values = [view.get(key) for key in self._keys_of(entry)]
            found = [value for value in values if value is not None]
            if len(found) < len(values):
                raise CorruptLogError(
                    f"store {store!r}: a piece of run {entry.number} is missing in the local state",
                    hint="delete the task's local state: it is rebuilt from the changelog",
                )
            yield concat_rows([decode_rows(value, checked=True) for value in found])

    @staticmethod
    def _keys_of(entry: _EntryOfFormat1) -> list[bytes]:
        return [_PIECE_OF_FORMAT_1.pack(b"r", entry.number, piece) for piece in range(entry.pieces)]


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    format: int


_DECODER = msgspec.json.Decoder(Manifest)
_DECODER_OF_FORMAT_1 = msgspec.json.Decoder(ManifestOfFormat1)
_FORMAT_DECODER = msgspec.json.Decoder(_Format)


def read_manifest(store: str, view: View) -> Manifest | ManifestOfFormat1 | None:
    """What is in the local database; None: nothing. Raises ``CorruptLogError`` for a format that isn't known here."""
    data = view.get(_KEY)
    if data is None:
        return None
    format_ = _FORMAT_DECODER.decode(data).format
    if format_ == 1:
        return _DECODER_OF_FORMAT_1.decode(data)
    if format_ not in _FORMATS:
        raise CorruptLogError(
            f"store {store!r}: local state of format {format_}; this Headrace reads 1 to {_FORMAT}",
            hint="upgrade Headrace, or delete the local state: it is rebuilt from the changelog",
        )
    return _DECODER.decode(data)
