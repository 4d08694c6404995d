"""State in pieces of a row or two, of which hardly one stays in memory: as if there were very much of it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.stores import pieces


@contextmanager
def small_pieces(*, really: bool = True) -> Iterator[None]:
    """While this is open. Unless ``really``, nothing changes."""
    with pytest.MonkeyPatch.context() as patch:
        if really:
            patch.setattr(pieces, "PIECE_ROWS", 2)
            patch.setattr(pieces, "KEPT_BYTES_MAX", 100)
        yield
