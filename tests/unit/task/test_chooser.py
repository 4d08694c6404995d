"""Which envelope is next: in order within a partition, control first, and every partition gets its turn."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Ended
from headrace.task.inputs.chooser import Chooser, Envelope, Frames, SingleFrame

A, B, C = (SSP(StreamId("log", name), 0) for name in "abc")


def data(ssp: SSP, offset: int) -> Frames:
    return Frames(ssp, [offset], [b"\x00" * 10], offset + 1, 10)


def control(ssp: SSP, offset: int) -> SingleFrame:
    return SingleFrame(ssp, offset, b"\x01" * 4, offset + 1, 4)


def drained(chooser: Chooser) -> list[Envelope]:
    chosen = []
    while (envelope := chooser.choose()) is not None:
        chosen.append(envelope)
    return chosen


def offered(*envelopes: Envelope, bootstrap: tuple[SSP, ...] = ()) -> Chooser:
    chooser = Chooser([A, B, C], bootstrap)
    for envelope in envelopes:
        chooser.offer(envelope)
    return chooser


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.booleans())), st.lists(st.booleans(), max_size=20))
def test_the_order_of_a_partition_is_kept_and_nothing_is_lost(
    arrivals: list[tuple[SSP, bool]], takes: list[bool]
) -> None:
    chooser = Chooser([A, B, C])
    chosen: dict[SSP, list[int]] = defaultdict(list)
    sent: dict[SSP, int] = defaultdict(int)
    for number, (ssp, is_control) in enumerate(arrivals):
        chooser.offer((control if is_control else data)(ssp, sent[ssp]))
        sent[ssp] += 1
        if number < len(takes) and takes[number] and (envelope := chooser.choose()) is not None:
            chosen[envelope.ssp].append(envelope.next - 1)
    for envelope in drained(chooser):
        chosen[envelope.ssp].append(envelope.next - 1)
    assert chosen == {ssp: list(range(count)) for ssp, count in sent.items()}
    assert (len(chooser), [chooser.waiting_bytes(ssp) for ssp in (A, B, C)]) == (0, [0, 0, 0])


def test_partitions_take_turns() -> None:
    chooser = offered(*(data(ssp, offset) for ssp in (A, B, C) for offset in range(2)))
    assert [envelope.ssp for envelope in drained(chooser)] == [A, B, C, A, B, C]


def test_a_busy_partition_starves_nobody() -> None:
    chooser = offered(*(data(A, offset) for offset in range(100)), data(B, 0))
    assert B in [chooser.choose().ssp for _ in range(2)]  # type: ignore[union-attr]


def test_control_goes_first_but_never_before_data_of_its_own_partition() -> None:
    chooser = offered(data(A, 0), control(A, 1), data(B, 0), control(C, 0), Ended(C, 1))
    assert drained(chooser) == [control(C, 0), Ended(C, 1), data(A, 0), control(A, 1), data(B, 0)]


def test_a_side_input_is_read_to_its_end_before_anything_else() -> None:
    chooser = offered(control(A, 0), data(B, 0), bootstrap=(B, C))
    assert drained(chooser) == [data(B, 0)]
    chooser.bootstrapped(B)
    assert drained(chooser) == []
    chooser.bootstrapped(C)
    assert drained(chooser) == [control(A, 0)]


def test_what_was_put_back_is_next_again() -> None:
    chooser = offered(data(A, 0), data(A, 1))
    first = chooser.choose()
    assert first is not None
    chooser.put_back(first)
    assert (chooser.waiting_bytes(A), drained(chooser)) == (20, [data(A, 0), data(A, 1)])


def test_how_much_waits_is_known() -> None:
    """Its host stops polling a partition of which enough waits."""
    chooser = offered(data(A, 0), control(A, 1), data(B, 0))
    assert (chooser.waiting_bytes(A), chooser.waiting_bytes(B), len(chooser)) == (14, 10, 3)
    chooser.clear()
    assert (chooser.waiting_bytes(A), len(chooser), chooser.choose()) == (0, 0, None)


def test_it_is_ready_when_something_may_be_chosen_now() -> None:
    assert not offered().ready
    assert offered(data(A, 0)).ready
    chooser = offered(data(A, 0), bootstrap=(B,))
    assert not chooser.ready
    assert list(chooser._bootstrap) == [B]
    chooser.offer(data(B, 0))
    assert chooser.ready
    chooser.choose()
    assert not chooser.ready
    chooser.bootstrapped(B)
    assert chooser.ready
