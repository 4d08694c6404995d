"""Joins of all rows of two flows: whatever was told adds up to the join of both multisets, computed row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import polars as pl
import pytest
from histories import batches, histories, total
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.api.operators.join import ChangesHow
from headrace.rows.changes import BEFORE, CHANGE, DELETE
from headrace.task.operators import changes_join

HOWS: tuple[ChangesHow, ...] = get_args(ChangesHow)
LEFT = {"k": pl.String, "a": pl.Int64}
RIGHT = {"key": pl.String, "a": pl.Int64, "b": pl.Int64}
WHERE = pl.col("a") < pl.col("a_right")
Row = tuple[Any, ...]


def joined(how: ChangesHow, *, changes: Sequence[bool] = (True, True), **options: Any) -> hr.App:
    app = hr.App("joined")
    sides = []
    for name, schema, changing in zip(("left", "right"), (LEFT, RIGHT), changes, strict=True):
        flow = app.input(name, schema | ({"change": pl.String} if changing else {}))
        sides.append(flow.as_changes() if changing else flow)
    keys = {"left_on": "k", "right_on": "key"} if "left_on" not in options else {}
    result = sides[0].join(sides[1], how=how, **{"ttl": "never", "id": "join"} | keys | options)
    result.send_to(app.output("out"))
    return app


def fed(t: Any, side: str, *rows: dict[str, Any]) -> None:
    t.feed(side, [{"change" if name == CHANGE else name: value for name, value in row.items()} for row in rows])


def multiset(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[Row]:
    found: Counter[Row] = Counter()
    for row in rows:
        found[tuple(row[name] for name in columns)] += -1 if row.get(CHANGE) in (BEFORE, DELETE) else 1
    return list(found.elements())


def sql_join(how: ChangesHow, left: Sequence[Row], right: Sequence[Row], *, where: bool, keyed: bool = True) -> list[Row]:
    """The plain join: each left row with each right row; ``keyed``: only those of its key."""

    def agree(one: Row, two: Row) -> bool:
        same = not keyed or (one[0] is not None and one[0] == two[0])
        return same and (not where or (None not in (one[1], two[1]) and one[1] < two[1]))

    partners = [[two for two in right if agree(one, two)] for one in left]
    if how in ("semi", "anti"):
        return [one for one, those in zip(left, partners, strict=True) if bool(those) == (how == "semi")]
    of_right = (lambda two: two[1:]) if keyed else (lambda two: two)
    found = [one + of_right(two) for one, those in zip(left, partners, strict=True) for two in those]
    if how in ("left", "full"):
        nothing = (None,) * (2 if keyed else 3)
        found += [one + nothing for one, those in zip(left, partners, strict=True) if not those]
    if how in ("right", "full"):
        nothing = (None,) * (1 if keyed else 2)
        alone = [two for two in right if not any(agree(one, two) for one in left)]
        found += [(two[0], *nothing, *two[1:]) if keyed else (*nothing, *two) for two in alone]
    return found


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


KEYS = st.sampled_from(["x", "y", None])
SMALL = st.sampled_from([1, 2, None])
LEFTS = st.fixed_dictionaries({"k": KEYS, "a": SMALL})
RIGHTS = st.fixed_dictionaries({"key": KEYS, "a": SMALL, "b": st.sampled_from([7, 8])})


@st.composite
def fed_batches(draw: st.DrawFn, changes: Sequence[bool]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The batches of both sides, in any order."""
    of_side = []
    for name, rows, changing in zip(("left", "right"), (LEFTS, RIGHTS), changes, strict=True):
        history = draw(histories(rows, 14) if changing else st.lists(rows, max_size=8))
        of_side.append([(name, batch) for batch in draw(batches(history))])
    found = []
    while any(of_side):
        side = of_side[draw(st.integers(0, 1))] or of_side[0] or of_side[1]
        found.append(side.pop(0))
    return found


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data(), changes=st.tuples(st.booleans(), st.booleans()), where=st.booleans())
@pytest.mark.parametrize("how", HOWS)
def test_any_history_adds_up_to_the_join(
    how: ChangesHow, data: st.DataObject, changes: tuple[bool, bool], where: bool
) -> None:
    given_ = data.draw(fed_batches(changes))
    sides: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}
    with joined(how, changes=changes, where=WHERE if where else None).test() as t:
        for name, batch in given_:
            sides[name] += batch
            fed(t, name, *batch)
            match data.draw(st.sampled_from(["go on", "go on", "commit", "die"])):
                case "commit":
                    t.restart(checkpoint=True)
                case "die":
                    t.restart()
        expected = sql_join(how, multiset(sides["left"], [*LEFT]), multiset(sides["right"], [*RIGHT]), where=where)
        t.end()
        assert in_order(total(t.read("out", committed=True))) == in_order(expected)
