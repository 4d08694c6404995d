"""Queries of other engines' own tests, with their rows: what Headrace's SQL gives is what they give, or is listed."""

from __future__ import annotations

import re

import pytest
from judged_cases import Case, answered, cases, counted, declared

from headrace.core.errors import DeclarationError

CASES = cases()


@pytest.mark.parametrize("case", [one for one in CASES if one.verdict != "refused"], ids=lambda one: one.id)
def test_a_query_gives_what_is_listed_over_a_restart(case: Case) -> None:
    found, wanted = answered(case), counted(case.result)
    assert {"more": found - wanted, "less": wanted - found} == {"more": {}, "less": {}}


@pytest.mark.parametrize("case", [one for one in CASES if one.verdict == "refused"], ids=lambda one: one.id)
def test_what_is_missing_is_refused_at_its_place(case: Case) -> None:
    words = case.reason.partition("|")[2].strip()
    with pytest.raises(DeclarationError) as caught:
        declared(case)
    assert words in str(caught.value)
    assert re.search(r"line \d+, column \d+", str(caught.value))
