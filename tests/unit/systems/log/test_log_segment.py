from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import CorruptLogError, UsageError
from headrace.systems.log import segment
from headrace.systems.log.segment import ScanEnd, TailState

SALT = 0x0123456789ABCDEF
SEED = segment.seed_of(SALT)
GOLDEN_FILE_HEADER = "48524143454c4f47000000020123456789abcdef000000000000000060ee21d7"
GOLDEN_RECORD = "f5485201000000080acd4dcb0000018bcfe5687b50e2de656865616472616365"
GOLDEN_EMPTY = "f5485201000000002f720f200000018bcfe5687bc0e776ac"
GOLDEN_SEAL = "f5485202000000002f720f200000018bcfe5687b20ca124d"


TIME_MS = 1_700_000_000_123


def record(body: bytes, seed: int = SEED, time_ms: int = TIME_MS) -> bytes:
    return b"".join(segment.encode_records([body], seed, time_ms))


def test_golden_file_header() -> None:
    assert segment.encode_file_header(SALT).hex() == GOLDEN_FILE_HEADER
    assert segment.decode_file_header(segment.encode_file_header(SALT)) == SEED


def test_golden_record_and_seal() -> None:
    assert record(b"headrace").hex() == GOLDEN_RECORD
    assert record(b"").hex() == GOLDEN_EMPTY
    assert segment.seal_record(SEED, TIME_MS).hex() == GOLDEN_SEAL


def test_a_file_header_of_another_version_or_kind_is_refused() -> None:
    good = segment.encode_file_header(SALT)
    with pytest.raises(CorruptLogError, match="not a log partition"):
        segment.decode_file_header(b"PAR1" + good[4:])
    with pytest.raises(CorruptLogError, match="not a log partition"):
        segment.decode_file_header(good[:20])
    with pytest.raises(CorruptLogError, match="checksum of the file header"):
        segment.decode_file_header(good[:15] + b"\xff" + good[16:])
    checked = segment.FILE_HEADER.pack(segment.FILE_MAGIC, 7, SALT, 0)[:-4]
    newer = checked + segment.google_crc32c.value(checked).to_bytes(4, "big")
    with pytest.raises(CorruptLogError, match="version 7; this version of Headrace reads 2") as caught:
        segment.decode_file_header(newer)
    assert caught.value.hint == "a newer version wrote it; upgrade readers before writers"
    older = bytes.fromhex("48524143454c4f47000000010123456789abcdef000000000000000080c34536")
    with pytest.raises(CorruptLogError, match="log format version 1; this version of Headrace reads 2") as caught:
        segment.decode_file_header(older)
    assert caught.value.hint is not None
    assert "an older version wrote it" in caught.value.hint


def test_a_body_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "MAX_BODY", 10)
    with pytest.raises(UsageError, match="11 bytes"):
        segment.check_fits(b"x" * 11)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(0, 1 << 40))
def test_what_is_written_is_read(bodies: list[bytes], base: int) -> None:
    data = b"".join(map(record, bodies))
    result = segment.scan(data, base, SEED)
    assert result.payloads == bodies
    assert result.stop is ScanEnd.END
    assert result.next == base + len(data)
    for offset, body in zip(result.offsets, bodies, strict=True):
        assert segment.scan(data[offset - base :], offset, SEED).payloads[0] == body


def test_a_seal_ends_the_scan() -> None:
    data = record(b"a") + segment.seal_record(SEED, TIME_MS) + record(b"behind the end")
    result = segment.scan(data, 32, SEED)
    assert (result.payloads, result.stop, result.next) == ([b"a"], ScanEnd.SEALED, 32 + len(record(b"a")))


@pytest.mark.parametrize("cut", range(1, len(record(b"hello"))))
def test_an_incomplete_record_says_what_it_needs(cut: int) -> None:
    whole = record(b"hello")
    result = segment.scan(whole[:cut], 0, SEED)
    assert result.stop is ScanEnd.INCOMPLETE
    assert result.need == (segment.HEADER_SIZE if cut < segment.HEADER_SIZE else len(whole))
    assert segment.diagnose(whole[:cut], SEED).state is TailState.WAIT


@pytest.mark.parametrize("cut", range(1, len(record(b"hello world, hello"))))
def test_a_torn_record_is_stepped_over_as_soon_as_another_header_follows(cut: int) -> None:
    torn, after = record(b"hello world, hello")[:cut], record(b"the next writer's")
    for visible in range(segment.HEADER_SIZE, len(after) + 1):
        diagnosis = segment.diagnose(torn + after[:visible], SEED)
        assert (diagnosis.state, diagnosis.skip) == (TailState.TORN, cut)


def test_a_torn_record_that_claims_far_more_than_the_file_holds_does_not_hold_up_its_followers() -> None:
    torn = record(b"x" * 1_000_000)[:100]
    assert segment.diagnose(torn + record(b"y"), SEED).skip == 100


def test_two_tears_in_a_row() -> None:
    data = record(b"x" * 500)[:40] + record(b"y" * 500)[:60] + record(b"z")
    assert segment.diagnose(data, SEED).skip == 40
    assert segment.diagnose(data[40:], SEED).skip == 60


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_flipped_byte_before_another_record_is_corruption(body: bytes, data: st.DataObject) -> None:
    good = record(body)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    tail = data.draw(st.sampled_from([b"", record(b"next"), segment.seal_record(SEED, TIME_MS)]))
    assert segment.scan(bytes(bad) + tail, 0, SEED).stop is ScanEnd.BAD
    assert segment.diagnose(bytes(bad) + tail, SEED).state is TailState.CORRUPT


def test_a_record_of_another_file_inside_a_body_is_no_record_here() -> None:
    foreign = record(b"payload", segment.seed_of(SALT + 1))
    growing = record(foreign * 3 + b"tail")
    assert segment.diagnose(growing[:-4], SEED).state is TailState.WAIT
    flipped = growing[:-1] + b"?"
    assert segment.diagnose(flipped, SEED).state is TailState.CORRUPT


def test_zeros_are_corruption() -> None:
    assert segment.diagnose(bytes(100), SEED).state is TailState.CORRUPT
    assert segment.diagnose(bytes(3), SEED).state is TailState.CORRUPT


def test_headers_are_found_from_both_sides() -> None:
    data = b"junk\xf5HR" + record(b"a") + b"\xf5HR" + segment.seal_record(SEED, TIME_MS) + b"\xf5HR\x01junk"
    first = segment.find_header(data, 0, len(data), SEED)
    assert first is not None
    assert (first.at, first.kind) == (7, segment.RECORD)
    seal = segment.find_header(data, 0, len(data), SEED, kind=segment.SEAL)
    last = segment.find_last_header(data, SEED)
    assert seal == last
    assert seal is not None
    assert seal.at == 7 + len(record(b"a")) + 3
    assert segment.find_last_header(b"nothing here", SEED) is None


def test_a_diagnosis_wants_the_claimed_extent() -> None:
    assert segment.claimed_size(record(b"12345")[:24], SEED) == 24 + 5 + 24
    assert segment.claimed_size(b"garbage" * 10, SEED) == 48
