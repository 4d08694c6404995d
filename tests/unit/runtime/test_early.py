"""The message buffer: early arrivals by label, in order, whether they fit into memory or not."""

import resource
from collections import defaultdict
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import StorageError
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import SSP, StreamId
from headrace.runtime.inputs.version_buffer import BufferedFrame, VersionBuffer

PARTITIONS = [SSP(StreamId("log", "by-member"), p) for p in range(2)]


def early(ssp: SSP, producer: int, seq: int, body: bytes = b"....") -> BufferedFrame:
    return BufferedFrame(ssp, seq * 10, seq * 10 + 10, encode(Header(Kind.USER, producer, 1, 5, seq), body))


def test_a_label_is_taken_once_in_order_of_arrival() -> None:
    buffer = VersionBuffer()
    frames = [early(PARTITIONS[n % 2], 1, n) for n in range(5)]
    for frame in frames:
        buffer.put(7, frame)
    assert list(buffer.take(6)) == []
    assert list(buffer.take(7)) == frames
    assert (list(buffer.take(7)), buffer.memory_bytes, buffer.disk_bytes) == ([], 0, 0)


def test_memory_is_bounded_and_the_rest_is_on_disk() -> None:
    buffer = VersionBuffer(memory_bytes_max=1000)
    frames = [early(PARTITIONS[0], 1, n, b"x" * 75) for n in range(100)]
    for frame in frames:
        buffer.put(7, frame)
    assert (buffer.memory_bytes, buffer.disk_bytes) == (1000, 9000)
    assert list(buffer.take(7)) == frames
    assert (buffer.memory_bytes, buffer.disk_bytes) == (0, 0)


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_clearing_forgets_everything(memory: int) -> None:
    buffer = VersionBuffer(memory)
    buffer.put(7, early(PARTITIONS[0], 1, 1))
    buffer.clear()
    assert (list(buffer.take(7)), buffer.memory_bytes, buffer.disk_bytes) == ([], 0, 0)


@pytest.mark.parametrize("room", [0, 40_000])
def test_a_full_disk_is_told_clearly(room: int) -> None:
    """Whether the write itself meets it, or what Python held back of it."""
    buffer = VersionBuffer(0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(StorageError, match="early") as caught:
            for n in range(100):
                buffer.put(7, early(PARTITIONS[0], 1, n, b"x" * (75 if room == 0 else 7500)))
            list(buffer.take(7))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "free up space" in (caught.value.hint or "")
    with suppress(StorageError):
        buffer.clear()


puts = st.tuples(st.just("put"), st.integers(5, 8), st.integers(0, 1), st.integers(1, 2))
takes = st.tuples(st.just("take"), st.integers(5, 8), st.just(0), st.just(0))
forgets = st.tuples(st.just("forget"), st.integers(0, 30), st.integers(0, 1), st.integers(1, 2))


@settings(deadline=None)
@given(st.lists(st.one_of(puts, puts, puts, takes, forgets), max_size=40), st.sampled_from([0, 100, 200, 1 << 20]))
def test_it_is_a_dict_of_lists(steps: list[tuple[str, int, int, int]], memory: int) -> None:
    buffer, model = VersionBuffer(memory), defaultdict[int, list[BufferedFrame]](list)
    seqs: dict[tuple[int, int], int] = defaultdict(int)
    for step, number, partition, producer in steps:
        ssp = PARTITIONS[partition]
        match step:
            case "put":
                seqs[partition, producer] += 1
                frame = early(ssp, producer, seqs[partition, producer])
                buffer.put(number, frame)
                model[number].append(frame)
            case "take":
                assert list(buffer.take(number)) == model.pop(number, [])
            case _:
                # The producer goes on from here in a new generation, counting from the seq that stands.
                above = {early(ssp, producer, seq) for seq in range(number + 1, 100)}
                buffer.forget(ssp, producer, number)
                seqs[partition, producer] = min(number, seqs[partition, producer])
                for label, frames in model.items():
                    model[label] = [frame for frame in frames if frame not in above]
        assert buffer.memory_bytes <= memory
    for label in range(5, 9):
        assert list(buffer.take(label)) == model.pop(label, [])
    assert (buffer.memory_bytes, buffer.disk_bytes) == (0, 0)
    buffer.clear()
