"""on_error= and dead_letter= of steps, as they are declared."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.steps import FAILED_COLUMNS, BatchFunction, RowFunction, SendTo, SideOutput, Sink
from headrace.api.specs import Role

PART = {"part": pl.Int64}


def same(df: pl.DataFrame) -> pl.DataFrame:
    return df


def nothing(row: dict[str, Any]) -> Any:
    return {}


def test_the_policy_is_one_field_of_all_steps_that_call_functions(app: hr.App, views: hr.Stream) -> None:
    skipping: Any = {"on_error": "skip"}
    views.filter(nothing, **skipping).map_batches(same, **skipping).sink(print, **skipping)  # type: ignore[arg-type]
    views.map(nothing, PART, **skipping).flat_map(nothing, PART, **skipping).sink(print, **skipping)
    fallible = [
        node.operator
        for node in app.graph().nodes.values()
        if isinstance(node.operator, RowFunction | BatchFunction | Sink)
    ]
    assert {one.on_error for one in fallible} == {"skip"}
    assert len(fallible) == 6


def test_letters_go_to_an_output_that_is_made_for_them(app: hr.App, views: hr.Stream) -> None:
    failed = app.output("failed")
    views.map(nothing, PART, on_error="dead_letter", dead_letter=failed).sink(
        print, on_error="dead_letter", dead_letter="failed"
    )
    graph = app.graph()
    spec = graph.streams["failed"]
    assert (spec.role, dict(spec.schema.columns if spec.schema else {})) == (Role.SINK, dict(FAILED_COLUMNS))
    assert [n.inputs for n in graph.nodes.values() if isinstance(n.operator, SideOutput)] == [("map-1",), ("sink-1",)]
    assert [n.operator for n in graph.nodes.values() if isinstance(n.operator, SendTo)] == [SendTo("failed")] * 2


def test_a_declared_output_keeps_what_it_was_given(app: hr.App, views: hr.Stream) -> None:
    failed = app.output("failed", partitions=3)
    views.map(nothing, PART, on_error="dead_letter", dead_letter=failed).sink(print)
    spec = app.graph().streams["failed"]
    assert (spec.partitions, spec.location) == (3, failed.spec.location)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"on_error": "ignore"}, "on_error='ignore' is not one of the choices"),
        ({"on_error": "dead_letter"}, "needs the output that messages on which the function raises go to"),
        ({"dead_letter": hr.App("b").output("x")}, 'dead_letter= is given, but on_error is "fail"'),
        ({"on_error": "skip", "dead_letter": hr.App("b").output("x")}, 'dead_letter= is given, but on_error is "skip"'),
        ({"on_error": "dead_letter", "dead_letter": 7}, "dead_letter= takes an output, not int 7"),
        ({"on_error": "dead_letter", "dead_letter": hr.App("b").output("x")}, "'x' belongs to the app 'b'"),
    ],
)
def test_a_policy_that_can_not_be(views: hr.Stream, policy: dict[str, Any], says: str) -> None:
    for step in (lambda: views.map(nothing, PART, **policy), lambda: views.sink(print, **policy)):
        with pytest.raises(hr.errors.DeclarationError, match=says):
            step()


def test_an_expression_has_no_policy(views: hr.Stream) -> None:
    with pytest.raises(hr.errors.DeclarationError, match="are for functions, and the predicate isn't one"):
        views.filter(pl.col("ms") > 1, on_error="skip")


def test_letters_and_results_do_not_mix(app: hr.App, views: hr.Stream) -> None:
    out = app.output("out")
    views.map(nothing, PART, on_error="dead_letter", dead_letter=out).send_to(out)
    with pytest.raises(
        hr.errors.DeclarationError, match=r"step 'map-1': its dead_letter 'out' is also written by the flow at"
    ):
        app.graph()


def test_letters_of_inputs_are_others(app: hr.App) -> None:
    letters = app.output("letters")
    raw = app.input("raw", {"a": pl.Int64}, on_error="dead_letter", dead_letter=letters)
    raw.map(nothing, PART, on_error="dead_letter", dead_letter=letters).sink(print)
    with pytest.raises(hr.errors.DeclarationError, match="input 'raw': its dead_letter 'letters' is also written"):
        app.graph()
