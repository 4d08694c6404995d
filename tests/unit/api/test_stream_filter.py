"""filter: by expression, by column, by function."""

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.steps import Filter, RowFunction


def test_an_expression_keeps_the_schema_and_the_event_time(app: hr.App, views: hr.Stream) -> None:
    slow = views.filter(pl.col("ms") > 100)
    slow.send_to(app.output("slow"))
    node = app.graph().nodes["filter-1"]
    assert slow.schema == views.schema
    assert slow.event_time == views.event_time
    assert isinstance(node.operator, Filter)
    assert node.operator.predicate.meta.eq(pl.col("ms") > 100)


def test_a_boolean_column_is_a_predicate(views: hr.Stream) -> None:
    assert views.with_columns(ok=pl.col("ms") < 5).filter("ok").schema.columns["ok"] == pl.Boolean


def test_a_function_sees_rows_of_the_input_schema(app: hr.App, views: hr.Stream) -> None:
    def is_odd(row: dict[str, int]) -> bool:
        return row["ms"] % 2 == 1

    views.filter(is_odd).send_to(app.output("odd"))
    operator = app.graph().nodes["filter-1"].operator
    assert isinstance(operator, RowFunction)
    assert (operator.mode, operator.function, operator.input) == ("filter", is_odd, views.schema)


def test_an_unknown_column_names_the_likeliest_and_the_line(views: hr.Stream) -> None:
    with pytest.raises(hr.errors.DeclarationError) as caught:
        views.filter(pl.col("urll") != "/health")
    assert caught.value.message.startswith("filter: there is no column 'urll'\n  at ")
    assert "test_stream_filter.py" in caught.value.message
    assert caught.value.message.endswith('views.filter(pl.col("urll") != "/health")')
    assert caught.value.hint == "did you mean 'url'? the columns are member, url, ms, ts"


def test_the_predicate_must_be_boolean(views: hr.Stream) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=r'the predicate col\("ms"\) is Int64, not Boolean'):
        views.filter(pl.col("ms"))


@pytest.mark.parametrize("wrong", [3, None, True])
def test_other_things_are_no_predicate(views: hr.Stream, wrong: object) -> None:
    with pytest.raises(hr.errors.DeclarationError, match="the predicate must be"):
        views.filter(wrong)  # type: ignore[arg-type]
