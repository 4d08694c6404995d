from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kinesis.api import Position
from headrace.connectors.kinesis.records import Buffer, Fetched

SIZES = st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=6)


def fetched(first: int, sizes: list[int]) -> Fetched:
    numbers = [*range(first, first + len(sizes))]
    data = [b"x" * size for size in sizes]
    return Fetched(data, [str(n) for n in numbers], numbers, numbers, Position(1000 * (first + len(sizes))))


@given(SIZES, st.lists(st.integers(0, 20), min_size=40, max_size=40))
def test_everything_is_taken_once_in_order_and_no_more_than_there_is_room_for(
    pieces: list[list[int]], rooms: list[int]
) -> None:
    buffer = Buffer()
    total = 0
    for sizes in pieces:
        buffer.add(fetched(total, sizes))
        total += len(sizes)
    every = [size for sizes in pieces for size in sizes]
    seen: list[int] = []
    end = None
    for room in rooms:
        assert buffer.bytes == sum(every[len(seen) :])
        assert buffer.rows == total - len(seen)
        assert buffer.oldest_ms == (len(seen) if buffer.rows else None)
        if not buffer:
            break
        taken = buffer.take(room)
        assert sum(map(len, taken.data)) <= room or len(taken) == 1
        seen += taken.sequences
        assert taken.keys == [str(n) for n in taken.sequences]
        assert taken.arrived_ms == taken.sequences
        end = taken.end
    assert not buffer
    assert seen == [*range(total)]
    assert end == (Position(1000 * total) if pieces else None)


def test_a_position_inside_an_aggregate_names_the_last_row_of_it() -> None:
    rows = Fetched([b"a", b"b", b"c"], ["k"] * 3, [5, 5, 6], [0] * 3, Position(9), [3, 4, 0])
    assert [rows.position_after(n) for n in (1, 2, 3)] == [Position(5, 3), Position(5), Position(9)]
    assert rows.part(1, 2) == Fetched([b"b"], ["k"], [5], [0], Position(5), [4])
