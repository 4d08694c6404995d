"""When to try again: the bounds of pauses, whatever random number is drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.core.calls import Retry


@pytest.mark.parametrize(
    ("failures", "chance", "pause"),
    [(1, 0.0, 50), (1, 0.5, 75), (2, 0.0, 100), (3, 0.0, 200), (4, 0.0, 400), (5, 0.0, 500), (5000, 0.5, 750)],
)
def test_pauses_double_up_to_the_longest(failures: int, chance: float, pause: float) -> None:
    assert Retry(None, 100, 1000).pause_ms(failures, chance) == pause


@pytest.mark.parametrize(("attempts", "pauses"), [(1, 0), (2, 1), (5, 4)])
def test_so_many_attempts_have_one_pause_fewer(attempts: int, pauses: int) -> None:
    retry = Retry(attempts, 1, 10)
    failures = 1
    while retry.pause_ms(failures, 0.5) is not None:
        failures += 1
    assert failures - 1 == pauses


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True), st.floats(1, 1e6), st.floats(1, 1e6))
def test_half_of_a_pause_is_left_to_chance_and_none_is_longer_than_the_longest(
    failures: int, chance: float, first: float, longer: float
) -> None:
    retry = Retry(None, first, first + longer)
    least, pause = retry.pause_ms(failures, 0.0), retry.pause_ms(failures, chance)
    assert least is not None
    assert pause is not None
    assert least <= pause < 2 * least + 1e-6
    assert pause <= first + longer


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attempts": 0}, "attempts=0 is not a whole number from 1 up"),
        ({"attempts": True}, "attempts=True"),
        ({"first": "-1s"}, "first: '-1s' is below 1 ms"),
        ({"longest": "soon"}, "longest: 'soon' isn't a duration"),
        ({"first": "2s", "longest": "1s"}, "the longest pause, '1s', is shorter than the first, '2s'"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message):
        hr.calls.retry(**wrong)  # type: ignore[arg-type]
