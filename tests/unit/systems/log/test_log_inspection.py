"""Every byte of a partition is accounted for, and a repair makes readers skip what is damaged and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_harness import STREAM, append, log_file, new_log, read_all, ssp

from drawn import examples
from headrace.core.errors import CorruptLogError
from headrace.systems.log import system as inspection
from headrace.systems.log.layout import Seal, StreamFolder
from headrace.systems.log.segment import FILE_HEADER_SIZE, HEADER_SIZE
from headrace.systems.log.system import GapKind, Inspection, LogSystem

BODIES = [bytes([letter]) * (letter % 40) for letter in range(60, 90)]


def inspect(root: Path) -> Inspection:
    return inspection.inspect(StreamFolder(root, STREAM), 0)


def repair(root: Path) -> None:
    for gap in inspect(root).damage:
        inspection.repair(StreamFolder(root, STREAM), 0, gap)


def overwrite(root: Path, at: int, data: bytes) -> None:
    with log_file(root).open("r+b") as file:
        file.seek(at)
        file.write(data)


def places(bodies: list[bytes]) -> list[int]:
    """Where the records begin, and the end."""
    at = [FILE_HEADER_SIZE]
    for body in bodies:
        at.append(at[-1] + HEADER_SIZE + len(body))
    return at


def test_a_sound_partition_has_no_gaps(tmp_path: Path) -> None:
    new_log(tmp_path, BODIES)
    assert inspect(tmp_path) == Inspection(0, 32, places(BODIES)[-1], len(BODIES), sealed=False, gaps=())


def test_it_begins_where_the_partition_was_trimmed(tmp_path: Path) -> None:
    new_log(tmp_path, BODIES).admin().trim(ssp(), places(BODIES)[3])
    found = inspect(tmp_path)
    assert (found.oldest, found.records, found.gaps) == (places(BODIES)[3], len(BODIES) - 3, ())


@pytest.mark.parametrize(("left", "later", "kind"), [(7, False, GapKind.UNFINISHED), (7, True, GapKind.TORN)])
def test_an_unfinished_append_is_no_damage(tmp_path: Path, left: int, later: bool, kind: GapKind) -> None:
    system = new_log(tmp_path, BODIES)
    end = log_file(tmp_path).stat().st_size
    append(system, [b"torn away"])
    with log_file(tmp_path).open("r+b") as file:
        file.truncate(end + left)
    if later:
        append(system, [b"later"])
    found = inspect(tmp_path)
    assert [(gap.start, gap.stop, gap.kind) for gap in found.gaps] == [(end, end + left, kind)]
    assert found.damage == ()
    assert found.records == len(BODIES) + later


@pytest.mark.parametrize("fill", [b"\0", b"\xf5", b"x"])
@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_a_repair_skips_the_records_that_were_hit_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, fill: bytes, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("log")
    system = new_log(root, BODIES)
    begins = places(BODIES)
    before = log_file(root).read_bytes()
    for _ in range(data.draw(st.integers(1, 4))):  # a whole header may be left between two holes
        start = data.draw(st.integers(FILE_HEADER_SIZE, begins[-1] - 1))
        stop = min(begins[-1], start + data.draw(st.integers(1, 50) | st.integers(50, begins[-1])))
        overwrite(root, start, fill * (stop - start))
    after = log_file(root).read_bytes()
    intact = [
        body for body, at, end in zip(BODIES, begins[:-1], begins[1:], strict=True) if before[at:end] == after[at:end]
    ]
    assert inspect(root).records == len(intact)
    repair(root)
    assert inspect(root).damage == ()
    assert read_all(system)[0] == intact
    append(system, [b"later"])
    assert read_all(system)[0] == [*intact, b"later"]


def test_damage_stops_readers_until_it_is_repaired_and_what_was_there_is_kept(tmp_path: Path) -> None:
    system = new_log(tmp_path, BODIES)
    begins = places(BODIES)
    overwrite(tmp_path, begins[5] + 2, b"damage")
    with pytest.raises(CorruptLogError, match=r"offset \d+: no record begins there") as caught:
        read_all(system)
    assert "headrace stream verify log.events" in caught.value.hint
    (gap,) = inspect(tmp_path).damage
    assert (gap.start, gap.stop, gap.zeros) == (begins[5], begins[6], False)
    copy = inspection.repair(StreamFolder(tmp_path, STREAM), 0, gap)
    assert copy is not None
    assert b"damage" in copy.read_bytes()
    assert copy.stat().st_size == gap.stop - gap.start
    assert read_all(system)[0] == [*BODIES[:5], *BODIES[6:]]


def test_a_large_hole_is_left_in_pieces_that_readers_take_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = new_log(tmp_path, [b"before", bytes(10_000), b"after"])
    start, stop = places([b"before", bytes(10_000)])[1:]
    overwrite(tmp_path, start, bytes(stop - start))
    (gap,) = inspect(tmp_path).damage
    assert gap.zeros
    monkeypatch.setattr(inspection, "_PIECE_BYTES", 1000)
    assert inspection.repair(StreamFolder(tmp_path, STREAM), 0, gap) is None
    assert [one.stop - one.start for one in inspect(tmp_path).gaps] == [1000] * 10 + [24]
    assert read_all(system) == ([b"before", b"after"], stop - start)


def test_a_seal_with_too_few_ends_is_damage_and_is_written_again(tmp_path: Path) -> None:
    system = new_log(tmp_path, BODIES, partitions=2)
    system.admin().seal(STREAM)
    folder = StreamFolder(tmp_path, STREAM)
    before = folder.read_seal()
    assert before is not None
    assert before.ends is not None
    folder.write_seal(Seal(before.ends[:1]))
    with pytest.raises(CorruptLogError, match="1 ends for 2 partitions"):
        system.admin().extents(STREAM)
    found = inspection.inspect_stream(tmp_path, STREAM)
    assert "1 ends for 2 partitions" in found.seal_fault
    assert found.damaged
    assert inspection.repair_stream(tmp_path, found) == []
    assert not inspection.inspect_stream(tmp_path, STREAM).damaged
    assert folder.read_seal() == before
    assert LogSystem(tmp_path).admin().extents(STREAM)[0].sealed
