"""Times in the log: whatever clocks do and whatever happens to the index, the answer is that of reading all records."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_harness import STREAM, append, log_file, new_log, read_all, ssp, start_process

from drawn import examples
from headrace.core.clock import ManualClock
from headrace.core.errors import CorruptLogError, StreamSealedError, TrimmedOffsetError, UsageError
from headrace.systems.log import segment, time_index
from headrace.systems.log.layout import StreamFolder
from headrace.systems.log.partition import PartitionFile
from headrace.systems.log.producer import LogProducer
from headrace.systems.log.segment import TIME_ENTRY_SIZE, TimeEntry, decode_time_entry, encode_time_entry
from headrace.systems.log.system import LogSystem
from headrace.systems.log.time_index import TimeIndex

SEED = segment.seed_of(0x0123456789ABCDEF)
START_MS = 1_700_000_000_000
GOLDEN_ENTRY = "0000000100000000075bcd150000018bcfe56800deadbeef000000006fe1cde5"


def index_file(root: Path, partition: int = 0) -> Path:
    return StreamFolder(root, STREAM).times(partition)


def all_times(root: Path) -> list[tuple[int, int]]:
    """Offset and time of each record that is kept, read from the log alone."""
    folder = StreamFolder(root, STREAM)
    with closing(PartitionFile(folder.log(0), "events")) as file:
        records = file.appended(folder.read_trim(0), file.size())
        return [(record.offset, record.time_ms) for record in records]


def require_truth(system: LogSystem) -> None:
    """``offset_at`` and ``time_of`` say what the records say, for each time that there is and those around it."""
    admin, records = system.admin(), all_times(system.root)
    end = admin.extents(STREAM)[0].upcoming
    for time_ms in sorted({time + more for _, time in records for more in (-1, 0, 1)} | {0, 1 << 50}):
        first = next((offset for offset, time in records if time >= time_ms), end)
        assert admin.offset_at(ssp(), time_ms) == first, time_ms
    for offset, time_ms in records:
        assert admin.time_of(ssp(), offset) == time_ms
    assert admin.time_of(ssp(), end) is None


@contextmanager
def small_strides() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_index, "STRIDE", 200)
        patch.setattr(time_index, "BEHIND_MAX", 1000)
        patch.setattr(time_index, "WALK_MAX", 4000)
        yield


def write_at(root: Path, times: Sequence[int], writers: int = 1, size: int = 60) -> None:
    """Append a record at each of these times, the writers in turn."""
    clock = ManualClock()
    producers = [LogProducer(root, clock=clock) for _ in range(writers)]
    for number, time_ms in enumerate(times):
        clock.set_back(clock.now_ms() - time_ms)
        producer = producers[number * 7 % writers]
        producer.send(STREAM, 0, b"x" * (size + number % 5))
        producer.flush()
    for producer in producers:
        producer.close()


# -- the index and what happens to it -----------------------------------------------------------------


def lost(path: Path) -> None:
    path.unlink(missing_ok=True)


def untouched(path: Path) -> None:
    assert path.parent.is_dir()


def flipped(path: Path) -> None:
    if path.exists():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def cut_within_an_entry(path: Path) -> None:
    if path.exists():
        os.truncate(path, path.stat().st_size - 5)


def cut_after_an_entry(path: Path) -> None:
    if path.exists():
        os.truncate(path, TIME_ENTRY_SIZE)


def of_another_partition(path: Path) -> None:
    path.write_bytes(encode_time_entry(TimeEntry(1000, 5, 77), SEED) * 3)


def of_other_records(path: Path) -> None:
    """Valid entries that a crash of the machine has left of records that are others now."""
    with closing(PartitionFile(path.with_suffix(".log"), "events")) as file:
        size = file.size()
        entries = [TimeEntry(offset, 0, 1) for offset in range(32, size, max(1, size // 10))]
        path.write_bytes(b"".join(encode_time_entry(entry, file.seed) for entry in entries))


HAPPENINGS = [untouched, lost, flipped, cut_within_an_entry, cut_after_an_entry, of_another_partition, of_other_records]


@settings(deadline=None, max_examples=examples(60))
@given(
    steps=st.lists(st.integers(0, 5) | st.integers(-100, 100), min_size=1, max_size=60),
    writers=st.integers(1, 4),
    happening=st.sampled_from(HAPPENINGS),
    trimmed=st.floats(0, 1),
    sealed=st.booleans(),
)
def test_a_look_up_says_what_the_records_say(
    steps: list[int],
    writers: int,
    happening: Callable[[Path], None],
    trimmed: float,
    sealed: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("times")
    system = new_log(root)
    times = [START_MS + sum(steps[: number + 1]) for number in range(len(steps))]
    with small_strides():
        write_at(root, times, writers)
        assert [time for _, time in all_times(root)] == times
        require_truth(system)
        system.admin().trim(ssp(), all_times(root)[int(trimmed * (len(times) - 1))][0])
        happening(index_file(root))
        if sealed:
            system.admin().seal(STREAM)
        require_truth(system)
        if not sealed:
            write_at(root, [START_MS, START_MS + 7], writers)
            require_truth(system)
    shutil.rmtree(root)


@pytest.mark.parametrize("happening", HAPPENINGS[1:])
def test_a_damaged_index_is_made_anew_by_the_look_up(
    tmp_path: Path, happening: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    system = new_log(tmp_path)
    with small_strides():
        write_at(tmp_path, range(START_MS, START_MS + 100))
        good = index_file(tmp_path).read_bytes()
        assert len(good) > 20 * TIME_ENTRY_SIZE
        happening(index_file(tmp_path))
        require_truth(system)
        assert len(index_file(tmp_path).read_bytes()) > 20 * TIME_ENTRY_SIZE
        with closing(PartitionFile(log_file(tmp_path), "events")) as file:
            index = TimeIndex(index_file(tmp_path), file)
            last = index.last()
            assert last is not None
            index.require_true(last)
        before = index_file(tmp_path).stat().st_size
        write_at(tmp_path, range(START_MS + 100, START_MS + 200))
        assert index_file(tmp_path).stat().st_size > before, "writers go on with the new index"
        require_truth(system)


def test_an_entry_for_another_record_than_is_there_now_is_not_believed(tmp_path: Path) -> None:
    """Its records were lost in a crash of the machine. Others are there since, and one begins at the same offset."""
    system = new_log(tmp_path)
    with small_strides():
        write_at(tmp_path, range(START_MS, START_MS + 50))
        records = all_times(tmp_path)
        with closing(PartitionFile(log_file(tmp_path), "events")) as file:
            index = TimeIndex(index_file(tmp_path), file)
            last = index.last()
            assert last is not None
            index_file(tmp_path).unlink()
            index.append([TimeEntry(records[40][0], START_MS + 10, 12345), last])
        require_truth(system)


def test_a_look_up_reads_little_of_a_large_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = new_log(tmp_path)
    write_at(tmp_path, range(START_MS, START_MS + 800), size=50_000)
    records = all_times(tmp_path)
    read = 0
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        nonlocal read
        data = pread(fd, length, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    for number in (0, 399, 799):
        read = 0
        assert system.admin().offset_at(ssp(), START_MS + number) == records[number][0]
        assert read < 4 << 20
    read = 0
    assert system.admin().time_of(ssp(), records[500][0]) == START_MS + 500
    assert read < 100_000


def test_a_time_ahead_of_the_others_counts_until_it_is_trimmed(tmp_path: Path) -> None:
    """The first record at or after a time is one of a clock that was ahead, if that is the first."""
    system = new_log(tmp_path)
    ahead = START_MS + 1_000_000
    with small_strides():
        write_at(tmp_path, [*range(START_MS, START_MS + 10), ahead, *range(START_MS + 10, START_MS + 200)])
        records = all_times(tmp_path)
        assert system.admin().offset_at(ssp(), START_MS + 150) == records[10][0]
        system.admin().trim(ssp(), records[11][0])
        assert system.admin().offset_at(ssp(), START_MS + 150) == records[151][0]
        with closing(PartitionFile(log_file(tmp_path), "events")) as file:
            start = TimeIndex(index_file(tmp_path), file).start(START_MS + 150, records[11][0])
        assert records[151][0] - start < 1000, "the index was made anew without the time that was ahead"


def test_the_records_of_one_write_have_the_time_of_the_write(tmp_path: Path) -> None:
    new_log(tmp_path)
    clock = ManualClock(START_MS)
    producer = LogProducer(tmp_path, clock=clock)
    producer.send(STREAM, 0, b"a")
    clock.advance(10)
    producer.send(STREAM, 0, b"b")
    clock.advance(10)
    producer.flush()
    producer.close()
    assert [time for _, time in all_times(tmp_path)] == [START_MS + 20] * 2


def test_torn_appends_hide_no_record_from_a_look_up(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    with closing(PartitionFile(log_file(tmp_path), "events")) as file:
        seed = file.seed
    for number in range(40):
        with small_strides():
            write_at(tmp_path, [START_MS + number], writers=2)
        late = b"".join(segment.encode_records([b"y" * 300], seed, START_MS + 1_000_000))
        with log_file(tmp_path).open("ab") as log:
            log.write(late[: 1 + number * 8])
    with small_strides():
        write_at(tmp_path, [START_MS + 40])
        assert read_all(system)[1] > 0
        require_truth(system)
        lost(index_file(tmp_path))
        require_truth(system)


def test_an_index_that_can_not_be_written_fails_no_append(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    system = new_log(tmp_path)
    index_file(tmp_path).mkdir()
    with small_strides():
        write_at(tmp_path, range(START_MS, START_MS + 30))
        require_truth(system)
    assert "couldn't extend a time index" in caplog.text
    assert len(all_times(tmp_path)) == 30


def test_an_entry_of_an_append_that_a_seal_overtook_leads_to_nothing_after_the_end(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    with small_strides():
        write_at(tmp_path, range(START_MS, START_MS + 30))
        producer = system.producer()
        producer.send(STREAM, 0, b"late" * 100)
        system.admin().seal(STREAM)
        end = system.admin().extents(STREAM)[0].upcoming
        StreamFolder(tmp_path, STREAM).seal.rename(tmp_path / "seal")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time_index, "STRIDE", 1)
            producer.flush()
        (tmp_path / "seal").rename(StreamFolder(tmp_path, STREAM).seal)
        with closing(PartitionFile(log_file(tmp_path), "events")) as file:
            last = TimeIndex(index_file(tmp_path), file).last()
        assert last is not None
        assert last.offset > end
        require_truth(system)
        with pytest.raises(StreamSealedError):
            append(system, [b"more"])


def test_damage_where_a_look_up_reads_is_an_error(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    write_at(tmp_path, range(START_MS, START_MS + 10))
    offset = all_times(tmp_path)[4][0]
    data = bytearray(log_file(tmp_path).read_bytes())
    data[offset + 30] ^= 1
    log_file(tmp_path).write_bytes(data)
    assert system.admin().offset_at(ssp(), START_MS + 3) < offset
    with pytest.raises(CorruptLogError, match=f"offset {offset}"):
        system.admin().offset_at(ssp(), START_MS + 8)


def test_an_empty_partition_has_no_times(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    assert system.admin().offset_at(ssp(), 0) == 32
    assert system.admin().time_of(ssp(), 32) is None


def test_a_writer_that_was_held_up_does_not_stop_the_index(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    with small_strides():
        write_at(tmp_path, range(60))
        path = index_file(tmp_path)
        entries = path.read_bytes()
        path.write_bytes(entries + entries[:TIME_ENTRY_SIZE])  # it was worked out long before it was added
        write_at(tmp_path, range(60, 120))
        added = len(path.read_bytes()) - len(entries) - TIME_ENTRY_SIZE
        assert added > len(entries) // 2
        require_truth(system)


WRITER = """
import sys
from headrace.systems.log import time_index
from headrace.systems.log.system import LogSystem
time_index.STRIDE, time_index.BEHIND_MAX = 20_000, 320_000
producer = LogSystem(sys.argv[1]).producer()
print("ready", flush=True)
sys.stdin.readline()
for batch in range(400):
    for size in range(5):
        producer.send("events", 0, b"." * 100 * size)
    producer.flush()
print("done", flush=True)
sys.stdin.readline()
"""


def test_processes_that_append_at_once_share_an_index(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    writers = [start_process(WRITER, tmp_path) for _ in range(3)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    admin = system.admin()
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"done\n"
        time_ms = all_times(tmp_path)[-1][1]
        assert admin.offset_at(ssp(), time_ms) <= all_times(tmp_path)[-1][0]
    writers[0].kill()
    for writer in writers:
        writer.communicate(b"\n")
    records = all_times(tmp_path)
    assert len(records) == 3 * 400 * 5
    with closing(PartitionFile(log_file(tmp_path), "events")) as file:
        data = index_file(tmp_path).read_bytes()
        pieces = [data[at : at + 32] for at in range(0, len(data), 32)]
        entries = [entry for piece in pieces if (entry := decode_time_entry(piece, file.seed))]
        assert len(entries) == len(pieces)
        assert len(entries) > log_file(tmp_path).stat().st_size // 20_000 // 2
        for entry in entries:
            assert file.check_at(entry.offset) == entry.check
            assert max(time for offset, time in records if offset < entry.offset) <= entry.latest_ms
    for time_ms in {time for _, time in records}:
        first = next(offset for offset, time in records if time >= time_ms)
        assert admin.offset_at(ssp(), time_ms) == first


# -- bytes, and offsets that nobody can read from ----------------------------------------------------------


def test_golden_entry() -> None:
    entry = TimeEntry(123_456_789, START_MS, 0xDEADBEEF)
    data = encode_time_entry(entry, SEED)
    assert data.hex() == GOLDEN_ENTRY
    assert decode_time_entry(data, SEED) == entry
    for at in range(len(data)):
        bad = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert decode_time_entry(bad, SEED) is None
    assert decode_time_entry(data[:-1], SEED) is None
    assert decode_time_entry(data, segment.seed_of(5)) is None


def test_an_offset_is_checked_before_it_is_used(tmp_path: Path) -> None:
    system = new_log(tmp_path, [b"abc", b"def", b"ghi"])
    admin = system.admin()
    offsets = [offset for offset, _ in all_times(tmp_path)]
    end = admin.extents(STREAM)[0].upcoming
    for offset in [*offsets, end]:
        admin.check_offset(ssp(), offset)
    with pytest.raises(UsageError, match=f"no record begins at offset {offsets[1] + 3}"):
        admin.check_offset(ssp(), offsets[1] + 3)
    with pytest.raises(UsageError, match="after the end"):
        admin.check_offset(ssp(), end + 1)
    with pytest.raises(TrimmedOffsetError):
        admin.check_offset(ssp(), 0)
    admin.trim(ssp(), offsets[1])
    with pytest.raises(TrimmedOffsetError, match=f"the oldest kept record, {offsets[1]}"):
        admin.check_offset(ssp(), offsets[0])
    admin.check_offset(ssp(), offsets[1])
    admin.seal(STREAM)
    admin.check_offset(ssp(), end)
    with pytest.raises(UsageError, match="after the end"):
        admin.check_offset(ssp(), end + segment.HEADER_SIZE)
