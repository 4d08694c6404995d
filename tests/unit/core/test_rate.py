"""The token bucket: never more than allowed in any period, and no less than that for callers that wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.calls import TokenBucket


@pytest.mark.parametrize(
    ("takes", "waits"),
    [
        ([(1, 0)], [0]),
        ([(5, 0), (1, 0), (1, 0)], [0, 100, 200]),
        ([(5, 0), (1, 50), (1, 100)], [0, 50, 100]),
        ([(5, 0), (5, 10_000)], [0, 0]),
        ([(20, 0), (1, 1500)], [1500, 100]),
        ([(5, 1000), (1, 0)], [0, 100]),  # a clock that jumps back adds no tokens
    ],
)
def test_ten_a_second_with_five_at_once(takes: list[tuple[int, int]], waits: list[int]) -> None:
    bucket = TokenBucket(10, burst=5)
    assert [bucket.take(amount, now) for amount, now in takes] == waits


@given(
    st.floats(0.5, 1000),
    st.lists(st.tuples(st.integers(1, 50), st.floats(0, 500)), min_size=1, max_size=40),
)
def test_in_any_stretch_of_time_no_more_is_used_than_falls_in_and_a_bucket_full(
    per_s: float, takes: list[tuple[int, float]]
) -> None:
    bucket, now = TokenBucket(per_s), 0.0
    used: list[tuple[float, int]] = []
    for amount, pause in takes:
        now += pause
        used.append((now + bucket.take(amount, now), amount))
    burst = max(1.0, per_s / 10)
    for start in range(len(used)):
        for end in range(start, len(used)):
            # the tokens that the first one takes may have been added before it
            taken = sum(amount for _, amount in used[start + 1 : end + 1])
            assert taken <= burst + (used[end][0] - used[start][0]) * per_s / 1000 + 1e-6 * (1 + taken)


def test_a_rate_is_above_nothing() -> None:
    with pytest.raises(ValueError, match="above 0"):
        TokenBucket(0)
