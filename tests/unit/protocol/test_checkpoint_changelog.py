"""Which changelog records count, whichever incarnation wrote them, in whatever order."""

from __future__ import annotations

import pytest

from headrace.core.errors import FencedError, ProtocolError
from headrace.core.frame import Header, Kind
from headrace.core.ids import TaskName
from headrace.protocol.changelog import Changelog, ReplayStep
from headrace.protocol.record import AbortRecord, CommitRecord, LocalCheckpoint, encode_record

T = TaskName("s", 0)


def abort(generation, writer="w"):
    body = encode_record(AbortRecord(generation=generation, writer=writer))
    return Header(Kind.ABORT, 1, generation, -1, 1), body


def change(generation, seq):
    return Header(Kind.CHANGE, 1, generation, 0, seq), b""


def commit(generation, seq, version):
    record = CommitRecord(generation=generation, version=version, next_version=version + 1)
    return Header(Kind.COMMIT, 1, generation, version, seq), encode_record(record)


def read(changelog, *records, start=0):
    return [changelog.take(10 * i, *record) for i, record in enumerate(records, start)]


def test_changes_count_with_their_commit():
    changelog = Changelog(1, "w", None)
    got = read(changelog, abort(1), change(1, 2), commit(1, 3, 0), change(1, 4))
    assert got == [ReplayStep.FORGET, ReplayStep.HOLD, ReplayStep.APPLY, ReplayStep.HOLD]
    assert changelog.local == LocalCheckpoint(20, 1, 0)


def test_late_records_of_older_generations_count_for_nothing():
    changelog = Changelog(1, "w", None)
    got = read(changelog, abort(1), abort(3), abort(2), change(1, 2), commit(2, 2, 0), commit(3, 2, 0), commit(3, 3, 1))
    assert got == [ReplayStep.FORGET, ReplayStep.FORGET, *[ReplayStep.SKIP] * 3, ReplayStep.APPLY, ReplayStep.APPLY]
    assert changelog.record.version == 1


def test_a_retried_suffix_counts_once():
    changelog = Changelog(1, "w", None)
    records = [abort(1), change(1, 2), commit(1, 3, 0)]
    assert read(changelog, *records, *records)[3:] == [ReplayStep.SKIP] * 3
    assert changelog.local.offset == 20


def test_what_follows_a_hole_that_a_power_cut_has_left_does_not_count():
    changelog = Changelog(1, "w", None)
    before = abort(1), change(1, 2), commit(1, 3, 0)
    got = read(changelog, *before, change(1, 5), commit(1, 6, 1), change(1, 5), abort(2), change(2, 2), commit(2, 3, 1))
    assert got[3:6] == [ReplayStep.SKIP] * 3
    assert got[6:] == [ReplayStep.FORGET, ReplayStep.HOLD, ReplayStep.APPLY]
    assert (changelog.record.generation, changelog.record.version) == (2, 1)


def test_what_was_missing_may_come_again():
    changelog = Changelog(1, "w", None)
    assert read(changelog, abort(1), commit(1, 3, 0), change(1, 2), commit(1, 3, 0), commit(1, 4, 1))[2:] == [
        ReplayStep.HOLD,
        ReplayStep.APPLY,
        ReplayStep.APPLY,
    ]


def test_a_base_is_read_first_and_must_fit():
    base = LocalCheckpoint(70, 1, 0)
    changelog = Changelog(1, "w", base)
    assert read(changelog, commit(1, 3, 0), commit(1, 3, 0), commit(1, 4, 1), start=7) == [
        ReplayStep.SKIP,
        ReplayStep.SKIP,
        ReplayStep.APPLY,
    ]
    for record in (commit(1, 3, 1), commit(2, 3, 0), change(1, 3)):
        assert read(Changelog(1, "w", base), record, start=7) == [ReplayStep.MISFIT]
    assert read(Changelog(1, "w", base), commit(1, 3, 0), start=8) == [ReplayStep.MISFIT]


def test_the_owner_learns_that_it_was_replaced():
    changelog = Changelog(1, "w", None)
    changelog.owned_by(2)
    read(changelog, abort(2), abort(1))
    assert not changelog.replaced
    read(changelog, abort(3))
    assert changelog.replaced
    assert isinstance(changelog.stop_reason(T), FencedError)


def test_the_owner_learns_of_a_second_writer():
    changelog = Changelog(1, "w", None)
    changelog.owned_by(2)
    read(changelog, abort(2), abort(2, "x"))
    assert changelog.replaced
    assert "also to writer x" in str(changelog.stop_reason(T))


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([change(1, 2)], "starts at offset 0 in the middle of generation 1"),
        ([abort(1), commit(1, 3, 0), change(1, 4)], r"is CHANGE \(1, #4\) after \(1, #1\): records are missing"),
        ([abort(1), change(1, 3), commit(1, 4, 0), commit(1, 5, 1)], r"is COMMIT \(1, #5\) after \(1, #1\)"),
        ([abort(1), commit(2, 1, 0)], r"is COMMIT \(2, #1\) after \(1, #1\)"),
        ([abort(1), commit(1, 2, 4), commit(1, 3, 4)], "has version 4, but the commit before it has 4"),
        ([(Header(Kind.USER, 1, 1, 0, 1), b"")], "in the middle of generation 1"),
        ([abort(1), (Header(Kind.USER, 1, 1, 0, 2), b"")], "is a USER frame"),
        ([(Header(Kind.ABORT, 2, 1, 0, 1), b"")], "is from producer 2, but this is the changelog of producer 1"),
    ],
)
def test_a_damaged_changelog_is_refused(records, says):
    with pytest.raises(ProtocolError, match=says):
        read(Changelog(1, "w", None), *records)
