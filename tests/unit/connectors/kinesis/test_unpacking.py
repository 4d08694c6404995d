"""Which user records of a page come after a position."""

from __future__ import annotations

import pytest

from headrace.connectors.kinesis.api import KinesisRecord, Position
from headrace.connectors.kinesis.records import unpacked


@pytest.mark.parametrize("after", [Position(7), Position(7, 0)])
def test_a_plain_record_is_behind_itself_whether_it_is_numbered_or_not(after: Position) -> None:
    """KCL gives a record that is no aggregate the number 0, and so does a position that comes from a lease of it."""
    page = [KinesisRecord(n, "ann", b"%d" % n, 0) for n in (6, 7, 8)]
    found, _ = unpacked(page, after, lambda: (0, 1))
    assert (found.data, found.end) == ([b"8"], Position(8))
    nothing, _ = unpacked(page[:2], after, lambda: (0, 1))
    assert (nothing.data, nothing.end) == ([], Position(7))
