"""The version buffer: early arrivals by label, in order, whether they fit into memory or not."""

from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ProtocolError
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import SSP, Offset, StreamId
from headrace.systems.base import Records
from headrace.task.inputs.chooser import BufferedFrame, VersionBuffer

PARTITIONS = [SSP(StreamId("log", "by-member"), p) for p in range(2)]


class Stream:
    """Two partitions, in which every frame is followed by another one that isn't early."""

    def __init__(self) -> None:
        self.frames: dict[SSP, list[bytes]] = {ssp: [] for ssp in PARTITIONS}
        self.read: list[tuple[SSP, Offset, Offset]] = []

    def write(self, ssp: SSP, label: int, producer: int, seq: int, body: bytes) -> tuple[Header, BufferedFrame]:
        header, offset = Header(Kind.USER, producer, 1, label, seq), len(self.frames[ssp])
        payload = encode(header, body)
        self.frames[ssp] += [payload, b"of another label"]
        return header, BufferedFrame(ssp, offset, offset + 1, payload)

    def again(self, ssp: SSP, start: Offset, end: Offset) -> Iterator[Records]:
        self.read.append((ssp, start, end))
        for at in range(start, min(end, len(self.frames[ssp])), 3):
            part = range(at, min(at + 3, len(self.frames[ssp])))
            yield Records(ssp, list(part), [self.frames[ssp][i] for i in part], part.stop)


def filled(memory: int, frames: int = 100) -> tuple[VersionBuffer, Stream, list[BufferedFrame]]:
    stream = Stream()
    buffer, written = VersionBuffer(stream.again, memory), []
    for n in range(frames):
        header, frame = stream.write(PARTITIONS[n % 2], 7, 1, n, b"x" * 75)
        buffer.put(header, frame)
        written.append(frame)
    return buffer, stream, written


def test_a_label_is_taken_once_in_order_of_arrival() -> None:
    buffer, stream, frames = filled(1 << 20, 5)
    assert list(buffer.take(6)) == []
    assert list(buffer.take(7)) == frames
    assert (list(buffer.take(7)), buffer.empty, stream.read) == ([], True, [])


def test_memory_is_bounded_and_the_rest_is_read_again_a_partition_at_a_time() -> None:
    buffer, stream, frames = filled(1000)
    assert (buffer.memory_bytes, buffer.stream_bytes) == (1000, 9000)
    taken = list(buffer.take(7))
    for ssp in PARTITIONS:
        assert [f for f in taken if f.ssp == ssp] == [f for f in frames if f.ssp == ssp]
    assert (buffer.memory_bytes, buffer.stream_bytes) == (0, 0)
    assert stream.read == [(PARTITIONS[0], 10, 99), (PARTITIONS[1], 10, 99)]


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_clearing_forgets_everything(memory: int) -> None:
    buffer, _, _ = filled(memory, 1)
    buffer.clear()
    assert (list(buffer.take(7)), buffer.memory_bytes, buffer.stream_bytes) == ([], 0, 0)


def test_an_early_frame_that_is_gone_is_an_error() -> None:
    buffer, stream, _ = filled(0, 4)
    stream.frames[PARTITIONS[1]].clear()
    with pytest.raises(ProtocolError, match="early frame at offset 0 isn't there any more") as caught:
        list(buffer.take(7))
    assert "lost frames" in (caught.value.hint or "")


puts = st.tuples(st.just("put"), st.integers(5, 8), st.integers(0, 1), st.integers(1, 2))
takes = st.tuples(st.just("take"), st.integers(5, 8), st.just(0), st.just(0))
forgets = st.tuples(st.just("forget"), st.integers(0, 30), st.integers(0, 1), st.integers(1, 2))


@settings(deadline=None)
@given(st.lists(st.one_of(puts, puts, puts, takes, forgets), max_size=40), st.sampled_from([0, 100, 200, 1 << 20]))
def test_it_is_a_dict_of_lists(steps: list[tuple[str, int, int, int]], memory: int) -> None:
    stream = Stream()
    buffer = VersionBuffer(stream.again, memory)
    model = defaultdict[int, list[tuple[Header, BufferedFrame]]](list)
    seqs: dict[tuple[int, int], int] = defaultdict(int)

    def check_taken(label: int) -> None:
        taken, wanted = list(buffer.take(label)), [frame for _, frame in model.pop(label, [])]
        for ssp in PARTITIONS:
            assert [f for f in taken if f.ssp == ssp] == [f for f in wanted if f.ssp == ssp]

    for step, number, partition, producer in steps:
        ssp = PARTITIONS[partition]
        match step:
            case "put":
                seqs[partition, producer] += 1
                header, frame = stream.write(ssp, number, producer, seqs[partition, producer], b"....")
                buffer.put(header, frame)
                model[number].append((header, frame))
            case "take":
                check_taken(number)
            case _:
                # The producer goes on from here in a new generation, counting from the seq that stands.
                buffer.forget(ssp, producer, number)
                seqs[partition, producer] = min(number, seqs[partition, producer])
                for label, frames in model.items():
                    model[label] = [
                        (h, f) for h, f in frames if not (f.ssp == ssp and h.producer == producer and h.seq > number)
                    ]
        assert buffer.memory_bytes <= memory
    for label in range(5, 9):
        check_taken(label)
    assert (buffer.memory_bytes, buffer.stream_bytes) == (0, 0)
    buffer.clear()
