import pytest
from machine_host import A, B

from headrace.core.errors import ProtocolError
from headrace.core.frame import UNVERSIONED, Kind
from headrace.core.ids import TaskName
from headrace.protocol.frame_stamper import FrameStamper
from headrace.protocol.record import OutputSeq


def sending(barriers=True):
    made = FrameStamper(TaskName("s", 0), 1, 4, {A: 2, B: 1}, barriers)
    made.generation, made.label = 3, 7
    return made


def test_seqs_count_for_each_partition():
    out = sending()
    headers = [out.stamp(A, 0, Kind.USER), out.stamp(A, 1, Kind.USER), out.stamp(A, 0, Kind.WATERMARK)]
    assert [(h.kind, h.producer, h.generation, h.version, h.seq) for h in headers] == [
        (Kind.USER, 4, 3, 7, 1),
        (Kind.USER, 4, 3, 7, 1),
        (Kind.WATERMARK, 4, 3, 7, 2),
    ]


def test_a_restore_names_what_is_covered_and_follows_it_directly():
    out = sending()
    out.load([OutputSeq(stream="log.a", partition=1, seq=9, generation=2)])
    frames = out.restores(6, 7)
    assert [(f.stream, f.partition, f.header.version, f.header.seq, f.message.seq) for f in frames] == [
        (A, 0, 6, 1, 0),
        (A, 1, 6, 10, 9),
        (B, 0, 6, 1, 0),
    ]
    assert [(f.message.next_version, f.message.committed_by) for f in frames] == [(7, 0), (7, 2), (7, 0)]


def test_checkpoints_go_everywhere():
    frames = sending().checkpoints(7, 9)
    assert [(f.stream, f.partition, f.header.version, f.message.next_version) for f in frames] == [
        (A, 0, 7, 9),
        (A, 1, 7, 9),
        (B, 0, 7, 9),
    ]


def test_without_barriers_nothing_is_labelled_and_no_checkpoint_sent():
    out = sending(barriers=False)
    assert out.stamp(A, 0, Kind.USER).version == UNVERSIONED
    assert out.checkpoints(7, 8) == ()
    assert {(f.header.version, f.message.next_version) for f in out.restores(6, 7)} == {(UNVERSIONED, UNVERSIONED)}


def test_what_it_saves_it_loads():
    out = sending()
    out.stamp(A, 1, Kind.USER)
    saved = out.save()
    out.stamp(A, 1, Kind.USER)
    out.stamp(B, 0, Kind.USER)
    out.load(saved)
    assert out.save() == saved


def test_the_seqs_of_an_output_that_is_gone_are_kept_for_its_return():
    gone = OutputSeq(stream="log.gone", partition=3, seq=17, generation=1)
    out = sending()
    out.load([gone])
    assert gone in out.save()
    out.load([])
    assert gone not in out.save()


def test_the_restore_of_an_output_that_returns_names_the_generation_that_wrote_it_last():
    """Readers have seen no restore of those in between, and would take what they hold for copies of void frames."""
    without = FrameStamper(TaskName("s", 0), 1, 4, {A: 1}, barriers=True)
    without.generation = 2
    without.load([OutputSeq(stream="log.b", partition=0, seq=5, generation=1)])
    out = sending()
    out.load(without.save())
    (frame,) = [frame for frame in out.restores(6, 7) if frame.stream == B]
    assert (frame.message.seq, frame.message.committed_by) == (5, 1)


def test_an_output_that_lost_partitions_is_refused():
    with pytest.raises(ProtocolError, match=r"log\.b\[1\], which now has 1 partitions"):
        sending().load([OutputSeq(stream="log.b", partition=1, seq=1, generation=1)])


def test_of_an_output_that_no_key_deals_out_only_the_own_partition_hears_of_the_task():
    out = FrameStamper(TaskName("s", 1), 2, 4, {A: 2, B: 1}, barriers=True, own={A: 1})
    out.generation, out.label = 3, 7
    out.load([OutputSeq(stream="log.a", partition=0, seq=9, generation=2)])
    assert [(f.stream, f.partition) for f in out.restores(6, 7)] == [(A, 1), (B, 0)]
    assert [(f.stream, f.partition) for f in out.checkpoints(7, 9)] == [(A, 1), (B, 0)]
    # What was written when a key dealt it out is remembered, for the day when one does again.
    assert OutputSeq(stream="log.a", partition=0, seq=9, generation=2) in out.save()
