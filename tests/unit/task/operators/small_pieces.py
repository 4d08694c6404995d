"""State in pieces of one or two rows, almost none of which stay in memory, as with very large state."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.stores import pieces


@contextmanager
def small_pieces(*, really: bool = True) -> Iterator[None]:
    """Make pieces small inside the block; do nothing unless ``really``."""
    with pytest.MonkeyPatch.context() as patch:
        if really:
            patch.setattr(pieces, "PIECE_ROWS", 2)
            patch.setattr(pieces, "KEPT_BYTES_MAX", 100)
        yield
