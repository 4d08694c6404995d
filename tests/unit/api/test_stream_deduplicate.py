"""deduplicate and drop_late: their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.spec import EventTime
from headrace.api.operators.window import Deduplicate, DropLate


def test_deduplicate_is_a_step_with_state(app: hr.App, views: hr.Stream) -> None:
    once = views.deduplicate(["member", "url"], within="1h", id="once")
    once.send_to(app.output("out"))
    node = app.graph().nodes["once"]
    assert node.operator == Deduplicate(("member", "url"), 3_600_000, EventTime("ts"))
    assert (once.schema, once.event_time) == (views.schema, views.event_time)


def test_drop_late_is_a_step_without_an_id(app: hr.App, views: hr.Stream) -> None:
    views.drop_late(late_to="late").send_to(app.output("out"))
    node = app.graph().nodes["drop_late-1"]
    assert node.operator == DropLate(EventTime("ts"))
    assert node.operator.code == "DROP_LATE"


WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda s: s.deduplicate([], within="1h", id="x"), "deduplicate needs a key, and nothing says by which key"),
    (lambda s: s.deduplicate("nope", within="1h", id="x"), "there is no column 'nope'"),
    (lambda s: s.deduplicate([3], within="1h", id="x"), "a key is a column name, not int"),
    (
        lambda s: s.rename({"url": "__time"}).deduplicate("__time", within="1h", id="x"),
        "the column '__time' can't be a key",
    ),
    (lambda s: s.deduplicate("url", within="0s", id="x"), "within: '0s' is not a positive duration"),
    (lambda s: s.deduplicate("url", within="-5ms", id="x"), "within: -5 is not a positive duration"),
    (lambda s: s.deduplicate("url", within="soon", id="x"), "within: 'soon' isn't a duration"),
    (
        lambda s: s.select("url").deduplicate("url", within="1h", id="x"),
        "deduplicate needs an event time; 'ts' was dropped",
    ),
    (lambda s: s.select("url").drop_late(), "drop_late needs an event time; 'ts' was dropped"),
    (lambda s: s.drop_late(late_to="views"), "'views' is the name of an input"),
    (lambda s: s.drop_late(late_to=s.draft), "drop_late: "),
]


@pytest.mark.parametrize(("step", "message"), WRONG)
def test_what_is_wrong_is_said_with_the_users_line(
    views: hr.Stream, step: Callable[[hr.Stream], object], message: str
) -> None:
    with pytest.raises(hr.errors.DeclarationError) as info:
        step(views)
    assert message in str(info.value)
    assert "test_stream_deduplicate.py:" in str(info.value)


def test_late_messages_cannot_go_to_a_table(app: hr.App, views: hr.Stream) -> None:
    table: Any = app.table("t", key="member", schema={"member": pl.String})
    with pytest.raises(hr.errors.DeclarationError, match="late messages go to an output"):
        views.drop_late(late_to=table)
