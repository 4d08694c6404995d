"""merge: flows with the same columns become one."""

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.steps import Merge, Project


def test_all_messages_of_all(app: hr.App, views: hr.Stream) -> None:
    slow, home = views.filter(pl.col("ms") > 9), views.filter(pl.col("url") == "/")
    both = slow.merge(home, views)
    both.send_to(app.output("both"))
    node = app.graph().nodes["merge-1"]
    assert (node.operator, node.inputs) == (Merge(), ("filter-1", "filter-2", "input-views"))
    assert (both.schema, both.event_time) == (views.schema, views.event_time)


def test_another_order_of_columns_is_put_right(app: hr.App, views: hr.Stream) -> None:
    views.merge(views.select("ts", "ms", "url", "member")).send_to(app.output("both"))
    nodes = app.graph().nodes
    aligned = nodes[nodes["merge-1"].inputs[1]]
    assert isinstance(aligned.operator, Project)
    assert aligned.schema == views.schema


def test_a_difference_is_named(views: hr.Stream) -> None:
    with pytest.raises(
        hr.errors.DeclarationError, match="'ts' is missing; 'extra' is not expected; 'ms' is String, not Int64"
    ):
        views.merge(views.select("member", "url", ms="url", extra="url"))


def test_another_app_s_stream_is_refused(views: hr.Stream) -> None:
    other = hr.App("other").input("views", views.schema)
    with pytest.raises(hr.errors.DeclarationError, match="belongs to the app 'other', and this flow to 'page-views'"):
        views.merge(other)


def test_merging_nothing_or_no_stream(views: hr.Stream) -> None:
    with pytest.raises(hr.errors.DeclarationError, match="needs at least one other stream"):
        views.merge()
    with pytest.raises(hr.errors.DeclarationError, match="must be a stream, not str views"):
        views.merge("views")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "joining", [{"on": "member"}, {"how": "left", "on": "member"}, {"left_on": "a", "right_on": "b"}]
)
def test_merge_with_the_options_of_a_join_names_join(views: hr.Stream, joining: dict[str, str]) -> None:
    with pytest.raises(
        hr.errors.DeclarationError, match=f"merge: it takes streams and no {next(iter(joining))}="
    ) as caught:
        views.merge(views, **joining)  # type: ignore[arg-type]
    assert caught.value.hint == (
        'to combine messages of a key, write join(other, on="key", within="5m", id="pairs"), or join(table)'
    )


def test_merge_by_a_key_in_its_place_names_join(views: hr.Stream) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=r"it takes streams only, (?s:.*) write join\(other"):
        views.merge(views, "member")  # type: ignore[arg-type]
