"""Lists of cases cover each pair that can meet, and no case breaks a rule."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import examples
from seams.factors import FACTORS, RULES, Space, broken, coverage, covering, read, subsets, written


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Spaces with one to three values of each factor; some have no case at all."""
    return Space(
        {
            name: draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
            for name, values in FACTORS.items()
        }
    )


@settings(max_examples=examples(30))
@given(spaces(), st.integers(0, 1000))
def test_a_list_covers_each_pair_that_can_meet(space: Space, seed: int) -> None:
    cases = covering(space, seed)
    assert {pair for case in cases for pair in subsets(case, 2)} == space.pairs()
    assert all(broken(case) is None for case in cases)
    assert all(case[name] in space.factors[name] for case in cases for name in FACTORS)
    assert cases == covering(space, seed)
    assert len(cases) <= len(space.pairs())


@settings(max_examples=examples(20))
@given(st.data())
def test_pairs_can_meet_if_a_whole_case_has_them(data: st.DataObject) -> None:
    """Against all cases of a space that is small enough to list them."""
    free = data.draw(st.lists(st.sampled_from(sorted(FACTORS)), min_size=2, max_size=4, unique=True))
    only = {
        name: values[:4] if name in free else [data.draw(st.sampled_from(values))] for name, values in FACTORS.items()
    }
    space = Space(only)
    every = (dict(zip(only, values, strict=True)) for values in product(*only.values()))
    assert space.pairs() == {pair for case in every if broken(case) is None for pair in subsets(case, 2)}


def test_each_value_is_in_some_pair_and_each_rule_excludes_something() -> None:
    met = {value for pair in Space().pairs() for value in pair}
    assert met == {(name, value) for name, values in FACTORS.items() for value in values}
    for rule in RULES:
        choices = list(product(*(FACTORS[name] for name in rule.factors)))
        assert 0 < sum(rule.excludes(*choice) for choice in choices) < len(choices), rule.why


def test_a_shorter_list_begins_alike_and_counts_less() -> None:
    space = Space({"step": ["filter", "session"], "mode": ["kit", "local"]})
    cases = covering(space, 7)
    assert covering(space, 7, 5) == cases[:5]
    few, all_ = coverage(cases[:5], space), coverage(cases, space)
    assert all_.pairs == all_.of_pairs == few.of_pairs > few.pairs
    assert all_.triples > few.triples


def test_a_case_is_read_as_it_is_written() -> None:
    case = Space().completed({})
    assert case is not None
    assert read(written(case)) == case
    with pytest.raises(ValueError, match="isn't a case: step"):
        read(written({**case, "step": "jump"}))
    with pytest.raises(ValueError, match="only the test kit is fed"):
        read(written({**case, "mode": "local", "input": "fed"}))
