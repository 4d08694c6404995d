import random

import pytest

from headrace.core.errors import FrameError, ProtocolError
from headrace.core.frame import UNVERSIONED, Checkpoint, Header, Kind, Restore
from headrace.protocol.read_committed import ReadCommitted
from headrace.protocol.record import ReaderPosition


def restore(generation, seq, committed_by=0, version=-1):
    message = Restore(task_name="a/0", task_count=1, seq=seq, next_version=version + 1, committed_by=committed_by)
    return Header(Kind.RESTORE, 1, generation, version, seq + 1), message


def checkpoint(generation, seq, version=0):
    message = Checkpoint(task_name="a/0", task_count=1, next_version=version + 1)
    return Header(Kind.CHECKPOINT, 1, generation, version, seq), message


def user(generation, seq, version=0, producer=1):
    return Header(Kind.USER, producer, generation, version, seq), None


def read(reader, frames, start=0):
    """The (generation, seq) of what is released; frames are at offsets 10 apart."""
    out = []
    for i, (header, control) in enumerate(frames, start):
        released = reader.receive(10 * i, 10 * i + 10, header, control, i)
        out += [(held.header.generation, held.header.seq) for held in released]
    return out


def test_frames_go_out_with_their_checkpoint():
    reader = ReadCommitted(whole=True)
    assert read(reader, [restore(1, 0), user(1, 2), user(1, 3)]) == []
    assert reader.held == 2
    assert read(reader, [checkpoint(1, 4), user(1, 5)], 3) == [(1, 2), (1, 3)]


def test_a_restore_releases_what_it_covers_and_drops_the_rest():
    reader = ReadCommitted(whole=True)
    frames = [restore(1, 0), user(1, 2), user(1, 3), restore(2, 2, committed_by=1), user(1, 4), user(2, 4)]
    assert read(reader, [*frames, checkpoint(2, 5)]) == [(1, 2), (2, 4)]


def test_duplicates_and_late_copies_are_dropped():
    reader = ReadCommitted(whole=True)
    frames = [restore(1, 0), user(1, 2), checkpoint(1, 3), user(1, 2), checkpoint(1, 3), user(1, 4), user(1, 4)]
    assert read(reader, [*frames, checkpoint(1, 5)]) == [(1, 2), (1, 4)]


GAPPED = [restore(1, 0), user(1, 2), user(1, 4), user(1, 5)]


@pytest.mark.parametrize("whole", [True, False])
def test_frames_that_no_commit_covers_may_be_missing(whole):
    reader = ReadCommitted(whole=whole)
    rest = [restore(2, 2, committed_by=1), user(2, 4), checkpoint(2, 5)]
    assert read(reader, [*GAPPED, *rest]) == [(1, 2), (2, 4)]


def test_so_may_the_restore_of_a_generation_that_has_committed_nothing():
    frames = [restore(1, 0), user(1, 2), checkpoint(1, 3), user(2, 5), restore(3, 3, committed_by=1), user(3, 5)]
    assert read(ReadCommitted(whole=True), [*frames, checkpoint(3, 6)]) == [(1, 2), (3, 5)]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("proof", [checkpoint(1, 6), restore(2, 3, committed_by=1), restore(2, 5, committed_by=1)])
@pytest.mark.parametrize("restart", [True, False])
def test_committed_frames_that_are_missing_are_an_error(whole, proof, restart):
    reader = ReadCommitted(whole=whole)
    read(reader, GAPPED)
    start = len(GAPPED)
    if restart:
        position = reader.position()
        start = position.offset // 10
        reader = ReadCommitted(ReaderPosition.decode(position.encode()))
    with pytest.raises(ProtocolError, match=r"after \(1, #2\): frames are missing"):
        read(reader, [*GAPPED[start:], proof], start)


def test_a_reader_that_restarts_reads_what_is_out_of_turn_again():
    reader = ReadCommitted(whole=True)
    assert read(reader, [restore(1, 0), user(1, 2), checkpoint(1, 3), user(1, 5), user(1, 6)]) == [(1, 2)]
    assert reader.position().offset == 30


def test_missing_frames_that_are_never_committed_are_an_error():
    with pytest.raises(ProtocolError, match="frames are missing"):
        read(ReadCommitted(), [user(1, 1, UNVERSIONED), user(1, 3, UNVERSIONED)])


def test_unversioned_frames_go_out_at_once():
    reader = ReadCommitted()
    plain = Header(Kind.USER)
    assert read(reader, [(plain, None), (plain, None), user(1, 1, UNVERSIONED), user(1, 1, UNVERSIONED)]) == [
        (0, 0),
        (0, 0),
        (1, 1),
    ]


def test_the_position_is_the_first_held_frame_and_what_is_covered():
    frames = [restore(1, 0), user(1, 2), checkpoint(1, 3), user(1, 4), (Header(Kind.USER), None), user(1, 5)]
    reader = ReadCommitted(whole=True)
    released = read(reader, frames)
    position = ReaderPosition.decode(reader.position().encode())
    assert position.offset == 30
    again = ReadCommitted(position)
    rest = [*frames[3:], checkpoint(1, 6)]
    assert released == [(1, 2), (0, 0)]
    assert read(again, rest, 3) == [(1, 4), (1, 5)]


@pytest.mark.parametrize("seed", range(20))
def test_plain_frames_among_held_ones_are_released_once_wherever_a_reader_restarts(seed):
    """Their only identity is their place: a reader that goes back to a held frame reads them again."""
    chance = random.Random(seed)
    plain = (Header(Kind.USER), None)
    frames, committed, held = [restore(1, 0)], [], []
    for _ in range(60):
        kind, seq, here = chance.choice("PPUUUC"), 2 + sum(h.seq > 0 for h, _ in frames[1:]), len(frames)
        if kind == "P":
            frames.append(plain)
            committed.append(here)
        elif kind == "U":
            frames.append(user(1, seq))
            held.append(here)
        else:
            frames.append(checkpoint(1, seq))
            committed, held = committed + held, []
    position, released = None, []
    at = 0
    while at < len(frames):
        reader = ReadCommitted(position, whole=True)
        end = chance.randint(at, len(frames))
        for i in range(at, end):
            released += [each.frame for each in reader.receive(10 * i, 10 * i + 10, *frames[i], i)]
        if end == len(frames):
            break
        position = ReaderPosition.decode(reader.position().encode())
        at = (position.offset or 0) // 10
    assert sorted(released) == sorted(committed)


def test_a_position_without_held_frames_is_after_the_last_frame():
    reader = ReadCommitted()
    read(reader, [checkpoint(1, 9)])
    assert reader.position().encode() == (
        b'{"format":2,"offset":10,"whole":false,"covered":[{"producer":1,"generation":1,"seq":9,"committed":8}]}'
    )


@pytest.mark.parametrize("whole", [True, False])
def test_a_restore_behind_what_was_committed_is_an_error(whole):
    frames = [restore(1, 0), user(1, 2), checkpoint(1, 3), restore(2, 2), user(2, 4), checkpoint(2, 5)]
    reader = ReadCommitted(whole=whole)
    assert read(reader, frames) == [(1, 2), (2, 4)]
    again = ReadCommitted(ReaderPosition.decode(reader.position().encode()))
    for each in (reader, again):
        with pytest.raises(ProtocolError, match=r"goes back to #3 at offset \d+, but #4 was committed: commits"):
            read(each, [restore(3, 3)])
    assert read(ReadCommitted(ReaderPosition.decode(again.position().encode())), [restore(4, 4)]) == []


def test_a_position_before_plain_frames_that_are_out_says_so():
    reader = ReadCommitted()
    read(reader, [user(1, 4), (Header(Kind.USER), None)])
    assert reader.position().encode() == (
        b'{"format":2,"offset":0,"whole":false,"covered":[{"producer":1,"generation":1,"seq":3,"committed":0}],'
        b'"plainBefore":20}'
    )


def test_in_mid_stream_a_newer_generation_voids_what_is_held():
    reader = ReadCommitted()
    assert read(reader, [user(1, 7), user(2, 9), checkpoint(2, 10)]) == [(2, 9)]


@pytest.mark.parametrize("restart", [1, 2, 3])
def test_in_mid_stream_the_restore_of_a_newer_generation_may_be_lost(restart):
    """A power cut took it, and not what came after it. What the generation before has committed still counts."""
    frames = [user(1, 7), user(2, 9), user(2, 10), restore(3, 7, committed_by=1), user(3, 9), checkpoint(3, 10)]
    assert read(ReadCommitted(), frames) == [(1, 7), (3, 9)]
    reader = ReadCommitted()
    assert read(reader, frames[:restart]) == []
    position = reader.position()
    assert position.offset == 0
    assert read(ReadCommitted(position), frames) == [(1, 7), (3, 9)]


def test_in_mid_stream_frames_without_versions_void_what_is_held():
    reader = ReadCommitted()
    assert read(reader, [user(1, 7), user(2, 9, UNVERSIONED)]) == [(2, 9)]
    assert not reader.undecided


def test_in_mid_stream_a_restore_distinguishes_committed_frames_from_late_copies():
    committed = [user(1, 7), restore(2, 7, committed_by=1)]
    assert read(ReadCommitted(), committed) == [(1, 7)]
    # Generation 2 started from seq 6, used 8 for a frame of its own and committed it, all before this reader
    # started: the held frame is a late copy of one that was void.
    void = [user(1, 7), restore(3, 8, committed_by=2)]
    assert read(ReadCommitted(), void) == []


def test_in_mid_stream_a_restore_may_be_a_late_one():
    # The restore of generation 3 is before the start; generation 2 wakes up and sends its own.
    assert read(ReadCommitted(), [restore(2, 0), user(2, 2), user(3, 2), checkpoint(3, 3)]) == [(3, 2)]


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([restore(1, 0), checkpoint(1, 3)], r"received CHECKPOINT \(1, #3\) at offset 10 after \(1, #1\)"),
        ([restore(1, 0), user(2, 2), checkpoint(2, 3)], "without the restore frame"),
        ([restore(1, 0), restore(2, 5)], "committed through #5"),
        ([user(1, 1), checkpoint(1, 2)], "without the restore frame"),
    ],
)
def test_missing_frames_are_an_error(frames, says):
    with pytest.raises(ProtocolError, match=says):
        read(ReadCommitted(whole=True), frames)


def test_a_reader_in_mid_stream_expects_no_introduction():
    assert read(ReadCommitted(), [user(1, 8), user(1, 9), checkpoint(1, 10)]) == [(1, 8), (1, 9)]


@pytest.mark.parametrize("data", [b"{", b'{"format":3,"offset":null}'])
def test_an_unreadable_position_is_refused(data):
    with pytest.raises(FrameError, match="reader position"):
        ReaderPosition.decode(data)
