"""A key column that isn't there is refused where it is named, whatever the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import headrace as hr

STEPS: list[Callable[[hr.App, hr.Stream], object]] = [
    lambda app, s: s.partition_by("nope", id="x"),
    lambda app, s: s.partition_by(pl.col("nope").str.to_lowercase(), id="x"),
    lambda app, s: s.window(hr.tumbling("1s"), key=["member", "nope"], id="x").agg(n=hr.count()),
    lambda app, s: s.deduplicate("nope", within="1h", id="x"),
    lambda app, s: s.join(app.input("o", {"nope": pl.String, "at": pl.Int64}, event_time="at"), on="nope", within="1s"),
    lambda app, s: s.join(app.input("o", {"at": pl.Int64}, event_time="at"), on="member", within="1s", id="x"),
    lambda app, s: s.join(app.table("t", key="nope", schema={"nope": pl.String})),
    lambda app, s: s.join(app.table("t", key="k", schema={"k": pl.String}), on="nope"),
    lambda app, s: s.send_to(app.output("o"), key="nope"),
    lambda app, s: app.table("t", key="nope", schema={"k": pl.String}),
    lambda app, s: s.sample(0.5, key="nope"),
]


@pytest.mark.parametrize("step", STEPS)
def test_a_key_column_that_is_not_there(app: hr.App, views: hr.Stream, step: Callable[..., object]) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=r"'(nope|member)'"):
        step(app, views)


EXPRESSIONS: list[Callable[[hr.App, hr.Stream, Any], object]] = [
    lambda app, s, key: s.window(hr.tumbling("1s"), key=key, id="x"),
    lambda app, s, key: s.deduplicate(key, within="1h", id="x"),
    lambda app, s, key: s.join(s, on=key, within="1s", id="x"),
    lambda app, s, key: s.send_to(app.output(f"o{id(key)}"), key=key),
    lambda app, s, key: s.sample(0.5, key=key),
    lambda app, s, key: app.table("t", key=key, schema={"member": pl.String}),
    lambda app, s, key: hr.io.sql("sqlite:///x.db", "t", key=key),
]


@pytest.mark.parametrize("step", EXPRESSIONS)
def test_an_expression_is_no_key_and_the_error_says_what_to_write(
    app: hr.App, views: hr.Stream, step: Callable[..., object]
) -> None:
    member = pl.col("member")
    for key in (member, [member]):
        with pytest.raises(hr.errors.DeclarationError, match=r'a key is a column name, not col\("member"\)') as raised:
            step(app, views, key)
        assert raised.value.hint == 'write "member"'
    for other in (member.str.to_lowercase(), 7, ["member", 7]):
        with pytest.raises(hr.errors.DeclarationError, match=r"a key is a column name, not (Expr|int)"):
            step(app, views, other)
