"""A store's part of the local database, in memory."""

from collections.abc import Iterable, Iterator, Sequence

import pytest

from headrace.stores import pieces
from headrace.stores import pieces as slices


class Disk:
    """What a store wrote, as the local database would store it."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value

    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.put(key, value)

    def delete(self, key: bytes) -> None:
        self.values.pop(key, None)

    def delete_many(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.delete(key)

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        found = sorted((k, v) for k, v in self.values.items() if start <= k and (stop is None or k < stop))
        return iter(found[::-1] if reverse else found)


def in_small_pieces() -> pytest.MonkeyPatch:
    """Until this is undone, stores make pieces of a few rows, few of which stay in memory, and slices of one row."""
    patch = pytest.MonkeyPatch()
    patch.setattr(pieces, "PIECE_ROWS", 4)
    patch.setattr(pieces, "KEPT_BYTES_MAX", 100)
    patch.setattr(slices, "_ROWS_MIN", 1)
    patch.setattr(slices, "SLICE_BYTES", 1)
    return patch
