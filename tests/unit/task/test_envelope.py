"""What is polled is cut into runs of user frames and single others; nothing moves, nothing is lost."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import SSP, Offset, StreamId
from headrace.systems.base import BadRecord, Ended, Records, Rows
from headrace.task.inputs.chooser import Frames, SingleFrame, envelopes

SOME = SSP(StreamId("log", "by-member"), 1)

payloads = st.one_of(
    st.builds(lambda body: encode(Header(Kind.USER), body), st.binary(max_size=4)),
    st.sampled_from([encode(Header(kind), b"{}") for kind in Kind if kind is not Kind.USER]),
    st.sampled_from([b"", b"\x63no kind at all"]),
)


@settings(deadline=None)
@given(st.lists(st.tuples(payloads, st.integers(1, 9))), st.integers(0, 1 << 40))
def test_order_offsets_and_bytes_are_kept(records: list[tuple[bytes, int]], first: Offset) -> None:
    offsets = [first + sum(size for _, size in records[:i]) for i in range(len(records) + 1)]
    polled = Records(SOME, offsets[:-1], [payload for payload, _ in records], offsets[-1])
    cut: list[tuple[Offset, bytes]] = []
    at = first
    for envelope in envelopes(polled):
        match envelope:
            case Frames():
                assert envelope.offsets[0] == at
                assert all(payload[0] == Kind.USER for payload in envelope.payloads)
                cut += zip(envelope.offsets, envelope.payloads, strict=True)
                assert envelope.bytes == sum(map(len, envelope.payloads))
            case SingleFrame():
                assert envelope.offset == at
                assert not envelope.payload.startswith(b"\x00")
                cut.append((envelope.offset, envelope.payload))
            case _:
                raise AssertionError(envelope)
        at = envelope.next
    assert cut == list(zip(polled.offsets, polled.payloads, strict=True))
    assert at == polled.next


@settings(deadline=None)
@given(st.lists(st.booleans()))
def test_neighbouring_user_frames_stay_together(users: list[bool]) -> None:
    frames = [encode(Header(Kind.USER if user else Kind.WATERMARK)) for user in users]
    cut = envelopes(Records(SOME, list(range(len(frames))), frames, len(frames)))
    runs = sum(user and not before for before, user in zip([False, *users], users, strict=False))
    assert sum(isinstance(envelope, Frames) for envelope in cut) == runs


def test_rows_stay_a_table_and_an_end_an_end() -> None:
    bad = BadRecord(SOME, 12, "no JSON", b"{")
    rows = pl.DataFrame({"member": ["a", "b"]})
    (table,) = envelopes(Rows(SOME, rows, 10, 13, [bad]))
    assert isinstance(table, Rows)
    assert (table.frame.height, table.offset, table.next, table.bad) == (2, 10, 13, [bad])
    assert table.bytes == rows.estimated_size()
    assert envelopes(Ended(SOME, 13)) == [Ended(SOME, 13)]
