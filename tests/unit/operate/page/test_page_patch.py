"""Merge patches: whatever two documents are, the difference makes one of the other."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.operate.page.view import difference

values = st.recursive(
    st.integers(-3, 3) | st.text("ab", max_size=2) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


def patched(before, patch):
    """The document that a patch makes of another one, as in ``live.js``."""
    after = {name: value for name, value in before.items() if name not in patch}
    for name, value in patch.items():
        if isinstance(value, dict):
            old = before.get(name)
            after[name] = patched(old if isinstance(old, dict) else {}, value)
        elif value is not None:
            after[name] = value
    return after


@given(documents, documents)
@settings(max_examples=examples(200), deadline=None)
def test_the_difference_makes_the_new_one_of_the_old_one(before, after):
    patch = difference(before, after)
    assert patched(before, patch) == after
    assert (not patch) == (before == after)


def test_only_what_has_changed_is_in_it():
    before = {"tasks": {"a/0": {"busy": 3, "lag": 7}, "a/1": {"busy": 3}}, "errors": []}
    after = {"tasks": {"a/0": {"busy": 4, "lag": 7}}, "errors": []}
    assert difference(before, after) == {"tasks": {"a/0": {"busy": 4}, "a/1": None}}
