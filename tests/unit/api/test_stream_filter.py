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


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("url = '/cart'", [1]),
        ("url <> '/cart'", [2, 3]),
        ("ms > 1 and url is not null", [2, 3]),
        ("not (ms between 2 and 9)", [1]),
        ("url in ('/cart', '/a')", [1, 2]),
        ("upper(url) like '/A%'", [2]),
        ("ms", [1, 3]),
        ('"is ok"', [1, 3]),
        ("is ok", [1, 3]),
    ],
)
def test_other_text_is_a_condition_in_sql(text: str, kept: list[int]) -> None:
    app = hr.App("page-views")
    columns = {"url": pl.String, "ms": pl.Boolean if text == "ms" else pl.Int64, "is ok": pl.Boolean}
    views = app.input("views", columns | {"n": pl.Int64})
    views.filter(text).send_to("kept")
    flag = {1: True, 2: False, 3: True}
    rows = [
        {"url": url, "ms": flag[n] if text == "ms" else n, "is ok": flag[n], "n": n}
        for n, url in enumerate(["/cart", "/a", "/b"], 1)
    ]
    with app.test() as t:
        t.feed("views", [*rows, {"url": None, "ms": None, "is ok": None, "n": 4}])
        assert t.read("kept")["n"].to_list() == kept


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("url = '/cart", r'"url = \'/cart" isn\'t a condition in SQL: .*Unterminated', "url = '/cart'"),
        ("ms >", "'ms >' isn't a condition in SQL", "or pl.col"),
        ("", "'' isn't a condition", "or pl.col"),
        ("nothing(url)", "unsupported function 'nothing'", "or pl.col"),
        ("urll = 'a'", "there is no column 'urll'", "did you mean 'url'"),
        ('url = "/cart"', "there is no column '/cart'", "single quotes: '/cart'"),
        ("length(url)", "not Boolean", "compare it"),
        ("count(*) > 1", "reads more than one row", "window"),
    ],
)
def test_what_is_wrong_in_sql_is_said(views: hr.Stream, text: str, message: str, hint: str) -> None:
    for declare in (lambda: views.filter(text), lambda: views.split({"some": text})):
        with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
            declare()
        assert hint in str(caught.value.hint)


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
