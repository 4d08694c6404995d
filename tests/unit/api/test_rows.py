"""map, flat_map, map_batches: the schema of a function's results is passed, or annotated."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.steps import BatchFunction, RowFunction


@dataclass
class Page:
    path: str
    ts: int


def to_page(row: dict[str, Any]) -> Page:
    return Page(row["url"], row["ts"])


def to_pages(row: dict[str, Any]) -> list[Page]:
    return [to_page(row)]


def lazily(row: dict[str, Any]) -> Iterator[Page]:
    yield to_page(row)


def many(row: dict[str, Any], times: int) -> Iterable[Page]:
    return [to_page(row)] * times


def untyped(row):  # type: ignore[no-untyped-def]
    return row


def to_dict(row: dict[str, Any]) -> dict[str, Any]:
    return row


PAGE = hr.Schema.of(Page)


def test_the_schema_is_the_one_given(views: hr.Stream) -> None:
    assert views.map(untyped, schema={"path": pl.String}).schema == hr.Schema.of({"path": pl.String})


def test_or_the_annotated_dataclass(app: hr.App, views: hr.Stream) -> None:
    pages = views.map(to_page)
    assert (pages.schema, pages.schema.record) == (PAGE, Page)
    pages.send_to(app.output("pages"))
    operator = app.graph().nodes["map-1"].operator
    assert isinstance(operator, RowFunction)
    assert (operator.mode, operator.input, operator.output) == ("map", views.schema, PAGE)


@pytest.mark.parametrize("function", [to_pages, lazily, partial(many, times=2)])
def test_flat_map_reads_what_is_iterated(views: hr.Stream, function: Callable[[Any], Iterable[Page]]) -> None:
    assert views.flat_map(function).schema == PAGE


def test_rows_stay_dataclasses_while_the_columns_do(app: hr.App) -> None:
    pages = app.input("pages", Page)
    assert pages.filter(pl.col("ts") > 0).partition_by("path", id="by-path").schema.record is Page
    assert pages.with_columns(n=1).schema.record is None


def test_map_batches_keeps_the_columns_unless_told(app: hr.App, views: hr.Stream) -> None:
    views.map_batches(lambda df: df.reverse()).send_to(app.output("reversed"))
    counted = views.map_batches(lambda df: df.select("ts"), schema={"ts": pl.Int64})
    counted.send_to(app.output("counted"))
    operators = [node.operator for node in app.graph().nodes.values()]
    outputs = [operator.output for operator in operators if isinstance(operator, BatchFunction)]
    assert outputs == [views.schema, counted.schema]
    assert counted.schema == hr.Schema.of({"ts": pl.Int64})


@pytest.mark.parametrize(("schema", "kept"), [(Page, True), ({"ts": pl.String}, False), ({"x": pl.Int64}, False)])
def test_the_event_time_stays_if_its_column_does(views: hr.Stream, schema: Any, kept: bool) -> None:
    assert (views.map(untyped, schema=schema).event_time is not None) is kept
    assert (views.flat_map(untyped, schema=schema).event_time is not None) is kept
    assert (views.map_batches(untyped, schema=schema).event_time is not None) is kept


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (untyped, r"untyped\(\) has no return annotation"),
        (lambda row: row, "the lambda has no return annotation"),
        (to_dict, r"to_dict\(\) is annotated to return dict\[str, typing.Any\]"),
        (to_pages, "is annotated to return list"),
    ],
)
def test_map_needs_one_or_the_other(views: hr.Stream, function: Callable[[Any], Any], found: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=f"the columns of the result are unknown: .*{found}") as caught:
        views.map(function)
    assert caught.value.hint == (
        'either give schema={"url": pl.String, ...}, or annotate the function to return a dataclass'
    )


def test_flat_map_wants_an_iterable(views: hr.Stream) -> None:
    with pytest.raises(hr.errors.DeclarationError, match="the columns of the result are unknown") as caught:
        views.flat_map(to_page)  # type: ignore[arg-type]
    assert "an Iterable of a dataclass" in str(caught.value.hint)


def test_an_unreadable_annotation_says_so(views: hr.Stream) -> None:
    def local(row: Any) -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
        return row

    with pytest.raises(hr.errors.DeclarationError, match="can't be read: name 'Nowhere' is not defined"):
        views.map(local)


async def slowly(row: Any) -> Page:
    return to_page(row)


@pytest.mark.parametrize(("wrong", "message"), [(pl.col("url"), "must be a function"), (slowly, "is async")])
def test_only_plain_functions(views: hr.Stream, wrong: Any, message: str) -> None:
    for step in (views.map, views.flat_map, views.map_batches, views.sink):
        with pytest.raises(hr.errors.DeclarationError, match=message):
            step(wrong)


class Bound:
    def method(self, row: Any) -> Any:
        return row

    def __call__(self, row: Any, and_more: Any) -> Any:
        return row


def wrapped(row: Any, connection: Any) -> Any:
    """Like a decorated function whose decorator passes the second argument."""
    return row


wrapping = wraps(wrapped)(lambda row: wrapped(row, None))


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (lambda: True, r"the lambda is called with one argument \(a row\), but takes \(\): too many positional"),
        (lambda row, more: True, "missing a required argument: 'more'"),
        (many, r"many\(\) is called with one argument"),
        (Bound(), r"Bound\(\) is called with one argument \(a row\), but takes \(row: Any, and_more: Any\)"),
    ],
)
def test_a_function_that_takes_something_else_is_refused_where_it_is_given(
    views: hr.Stream, function: Any, takes: str
) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=takes) as caught:
        views.filter(function)
    assert f"at {__file__}:" in caught.value.message
    for step in (views.map, views.flat_map, views.map_async):
        with pytest.raises(hr.errors.DeclarationError, match=takes):
            step(function, schema={"path": pl.String})
    for step in (views.map_batches, views.sink):
        with pytest.raises(hr.errors.DeclarationError, match=r"one argument \(a batch\)"):
            step(function)


@pytest.mark.parametrize(
    "function", [bool, print, wrapping, Bound().method, partial(many, times=2), dict, lambda *rows, **more: True]
)
def test_a_function_that_may_take_it_is_not(views: hr.Stream, function: Any) -> None:
    views.filter(function)
    views.sink(function)


def test_aggregates_and_remote_tables_say_what_they_call_with() -> None:
    with pytest.raises(hr.errors.DeclarationError, match=r"2 arguments \(the result so far, a row\)"):
        hr.aggregates.fold(0, lambda so_far: so_far, dtype=pl.Int64)  # type: ignore[arg-type, misc]
    with pytest.raises(hr.errors.DeclarationError, match=r"2 arguments \(a value, another one\)"):
        hr.aggregates.reduce(lambda a: a, "ms")  # type: ignore[arg-type, misc]
    with pytest.raises(hr.errors.DeclarationError, match=r"one argument \(keys\), but takes \(\)"):
        hr.tables.remote(lambda: ())  # type: ignore[arg-type, misc]
