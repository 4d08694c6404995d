"""Commits after which an app can't silently repeat what it has done."""

from __future__ import annotations

import pytest

from headrace.core.errors import UsageError
from headrace.protocol.record import CommitRecord, Detour, SourceEntry
from headrace.run.savepoints.restoring import check_order_comes_again

ENTRY = SourceEntry(stream="log.views", partition=0, offset=5)
ON_DETOUR = SourceEntry(stream="log.views", partition=0, offset=5, detour=Detour(until=9, offset=40))


def record(entry: SourceEntry) -> CommitRecord:
    return CommitRecord(generation=1, version=2, next_version=3, sources=(entry,))


def test_a_range_that_is_read_again_has_no_single_former_position() -> None:
    check_order_comes_again("app", record(ENTRY))
    with pytest.raises(UsageError, match=r"with an end makes it read a part of its input log\.views again"):
        check_order_comes_again("app", record(ON_DETOUR))
