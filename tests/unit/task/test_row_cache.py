"""The cache of a remote table against a list of all that was ever done to it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.task.tables import Key, Row, RowCache

KEYS = st.integers(0, 5).map(lambda n: (n,))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.none() | st.integers(0, 99)),
        st.tuples(st.just("renew"), KEYS, st.none() | st.integers(0, 99)),
        st.tuples(st.just("get"), KEYS, st.none()),
        st.tuples(st.just("forget"), KEYS, st.none()),
        st.tuples(st.just("pass"), st.integers(0, 8), st.none()),
    ),
    max_size=60,
)


@given(st.integers(1, 4), st.integers(1, 20), STEPS)
def test_it_is_a_dict_that_forgets(most: int, ttl: int, steps: list[tuple[str, Any, int | None]]) -> None:
    cache, now = RowCache(most, ttl), 0
    model: dict[Key, tuple[int, Row | None]] = {}
    used: list[Key] = []  # the one that was used last stands last

    def put(key: Key, row: Row | None) -> None:
        model[key] = now, row
        touch(key)
        if len(model) > most:
            del model[used.pop(0)]

    def touch(key: Key) -> None:
        if key in used:
            used.remove(key)
        used.append(key)

    for kind, key, value in steps:
        row = None if value is None else (key[0], value) if isinstance(key, tuple) else None
        if kind == "pass":
            now += key
        elif kind == "put":
            cache.put(key, row, now)
            put(key, row)
        elif kind == "renew":
            cache.renew([(key, row)], now)
            if key in model:
                put(key, row)
        elif kind == "forget":
            cache.forget([key])
            if key in model:
                del model[key]
                used.remove(key)
        else:
            known = key in model and now < model[key][0] + ttl
            wanted = model[key][1] if known else None
            assert cache.get([key], now) == ([] if wanted is None else [wanted], [] if known else [0])
            if known:
                touch(key)
        assert len(cache) == len(model) <= most


def test_a_clock_that_jumps_back_makes_nothing_live_longer() -> None:
    cache = RowCache(10, 100)
    cache.put((1,), (1, "a"), 5000)
    assert cache.get([(1,)], 5050) == ([(1, "a")], [])
    assert cache.get([(1,)], 4999) == ([], [0])


def test_rows_come_in_the_order_of_the_keys_and_unknown_ones_by_their_places() -> None:
    cache = RowCache(10, 100)
    cache.put((1,), (1, "a"), 0)
    cache.put((2,), None, 0)
    cache.put((3,), (3, "c"), 0)
    assert cache.get([(3,), (9,), (2,), (1,), (8,)], 0) == ([(3, "c"), (1, "a")], [1, 4])
