"""Whether kept commits fit together: readers have processed what the tasks before them have sent by the cut."""

from __future__ import annotations

import pytest

from headrace.core.ids import TaskName
from headrace.life.folder import Misfit, misfit
from headrace.protocol.record import CommitRecord, InputEntry, OutputSeq, ParentEntry

VIEWS, READER = TaskName("views", 0), TaskName("by-member", 1)
PRODUCERS = {11: VIEWS, 12: READER}


def sent(generation: int, seq: int, partition: int = 1) -> OutputSeq:
    return OutputSeq(stream="log.by-member", partition=partition, seq=seq, generation=generation)


def kept(*outputs: OutputSeq, read: tuple[int, int]) -> dict[TaskName, CommitRecord]:
    """Commits of version 60; the reader has all frames up to (generation, seq) ``read``."""
    generation, seq = read
    parent = ParentEntry(producer=11, generation=generation, version=60, seq=seq, resume_offset=200)
    entry = InputEntry(stream="log.by-member", partition=1, offset=200, parents=(parent,))
    out = OutputSeq(stream="log.out", partition=0, seq=99, generation=99)
    return {
        VIEWS: CommitRecord(generation=3, version=60, next_version=90, outputs=outputs),
        READER: CommitRecord(generation=2, version=60, next_version=61, outputs=(out,), inputs=(entry,)),
    }


@pytest.mark.parametrize("read", [(3, 8), (3, 9), (4, 9)])
def test_a_reader_that_has_all_fits(read: tuple[int, int]) -> None:
    """The frame that announces the commit comes after what it covers, or a restore says the same."""
    assert misfit(kept(sent(3, 8), read=read), PRODUCERS) is None


@pytest.mark.parametrize("read", [(3, 7), (2, 8), (2, 20)])
def test_a_reader_that_lacks_frames_does_not_fit(read: tuple[int, int]) -> None:
    """Those of an older generation may be void: a high number of theirs proves nothing."""
    assert misfit(kept(sent(3, 8), read=read), PRODUCERS) == Misfit(VIEWS, READER, "log.by-member[1]")


def test_other_partitions_and_tasks_that_have_written_nothing_there_do_not_matter() -> None:
    assert misfit(kept(sent(3, 8, partition=0), read=(2, 1)), PRODUCERS) is None
    assert misfit(kept(read=(0, 0)), PRODUCERS) is None
    alone = {READER: kept(sent(3, 8), read=(2, 1))[READER]}
    assert misfit(alone, PRODUCERS) is None
