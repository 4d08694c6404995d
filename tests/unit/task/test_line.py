"""The line of results against a list: nothing crosses a watermark, nothing is lost, order is what was asked for."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.task.calls import ReorderQueue


def left(line: ReorderQueue[int]) -> tuple[list[int], list[int]]:
    """All that leaves now: results, and watermarks."""
    results: list[int] = []
    watermarks: list[int] = []
    while True:
        some, watermark = line.leave()
        if not some and watermark is None:
            return results, watermarks
        results += some
        watermarks += [] if watermark is None else [watermark]


def test_in_order_a_result_waits_for_those_before_it() -> None:
    line: ReorderQueue[int] = ReorderQueue(ordered=True)
    line.take_places(3)
    line.put(2, 2)
    line.put(1, 1)
    assert left(line) == ([], [])
    line.put(0, 0)
    assert left(line) == ([0, 1, 2], [])
    assert len(line) == 0


def test_a_watermark_waits_for_the_results_before_it_and_holds_those_behind_it() -> None:
    line: ReorderQueue[int] = ReorderQueue(ordered=False)
    line.take_places(2)
    line.mark(10)
    line.take_places(1)
    line.put(2, 2)
    line.put(1, 1)
    assert line.leave() == ([1], None)
    assert line.leave() == ([], None)
    line.put(0, 0)
    assert line.leave() == ([0], 10)
    assert line.leave() == ([2], None)


def test_of_watermarks_in_a_row_the_last_one_counts() -> None:
    line: ReorderQueue[int] = ReorderQueue(ordered=True)
    line.take_places(1)
    for watermark in (1, 2, 3):
        line.mark(watermark)
    line.put(0, 0)
    assert left(line) == ([0], [3])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("mark"), st.just(0)),
        st.tuples(st.just("put"), st.integers(0, 1000)),
        st.tuples(st.just("leave"), st.just(0)),
    ),
    max_size=60,
)


@given(st.booleans(), STEPS)
def test_any_order_of_completion(ordered: bool, steps: list[tuple[str, int]]) -> None:
    line: ReorderQueue[int] = ReorderQueue(ordered=ordered)
    entered: list[str | int] = []
    waiting: list[int] = []
    came: list[int] = []
    out: list[str | int] = []

    def leave() -> None:
        results, watermark = line.leave()
        out.extend(results)
        if watermark is not None:
            out.append(f"w{watermark}")

    for kind, number in steps:
        if kind == "take":
            places = list(line.take_places(number))
            entered += places
            waiting += places
        elif kind == "mark" and len(line):
            entered.append(f"w{len(entered)}")
            line.mark(len(entered) - 1)
        elif kind == "put" and waiting:
            place = waiting.pop(number % len(waiting))
            came.append(place)
            line.put(place, place)
        elif kind == "leave":
            leave()
    for place in waiting:
        came.append(place)
        line.put(place, place)
    while len(line) or line._marks:
        leave()
    marks = [
        one for i, one in enumerate(entered) if isinstance(one, str) and not isinstance(entered[i + 1 : i + 2], str)
    ]
    assert sorted(one for one in out if isinstance(one, int)) == [one for one in entered if isinstance(one, int)]
    assert [one for one in out if isinstance(one, str)] == [one for one in marks if one in out]
    for mark in (one for one in out if isinstance(one, str)):
        before = {one for one in entered[: entered.index(mark)] if isinstance(one, int)}
        assert {one for one in out[: out.index(mark)] if isinstance(one, int)} == before
    if ordered:
        assert [one for one in out if isinstance(one, int)] == sorted(came)
