"""map_batches and sink: functions that take DataFrames."""

import polars as pl
import pytest

import headrace as hr

ROWS = [{"member": "a", "ms": 5, "ts": 1}, {"member": "b", "ms": 50, "ts": 2}]


def test_a_batch_becomes_another(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map_batches(lambda df: df.filter(pl.col("ms") > 10)).send_to(out)
    with app.test() as t:
        t.feed("views", ROWS)
        assert t.read("out").to_dicts() == [ROWS[1]]


def test_the_result_is_brought_to_the_stated_schema(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.map_batches(lambda df: df.select("ms", "member"), schema={"member": pl.String, "ms": pl.Float64}).send_to(out)
    with app.test() as t:
        t.feed("views", ROWS)
        assert t.read("out").rows() == [("a", 5.0), ("b", 50.0)]


def test_what_a_function_does_in_place_stays_with_it(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    """Two branches of one flow share the memory of their batches; neither sees the changes of the other."""
    seen: list[list[str]] = []

    def add_a_column(df: pl.DataFrame) -> pl.DataFrame:
        return df.insert_column(0, pl.Series("extra", [0] * df.height)).drop("extra")

    def drop_a_column(df: pl.DataFrame) -> None:
        seen.append(df.columns)
        df.drop_in_place("ms")

    views.map_batches(add_a_column).send_to(out)
    views.sink(drop_a_column)
    views.sink(drop_a_column)
    with app.test() as t:
        t.feed("views", ROWS)
    assert seen == [["member", "ms", "ts"]] * 2


def not_a_table(df: pl.DataFrame) -> pl.DataFrame:
    return df.to_dicts()  # type: ignore[return-value]


def raises(df: pl.DataFrame) -> pl.DataFrame:
    raise KeyError("nope")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (not_a_table, r"'map_batches-1'.*: not_a_table\(\) at .*py:\d+ returned \[.* instead of a polars DataFrame"),
        (raises, r"raised KeyError at .*test_batch_functions.py:\d+: 'nope'"),
        (lambda df: df.drop("ms"), "the batch function's result .* doesn't fit its schema: column 'ms' .* is missing"),
        (lambda df: df.with_columns(ms=pl.lit("x")), "doesn't fit its schema: 2 rows don't fit; the first is row 0"),
    ],
)  # fmt: skip
def test_errors_are_reported_with_the_place_of_the_message(
    app: hr.App, views: hr.Stream, out: hr.Output, function: object, says: str
) -> None:
    views.map_batches(function).send_to(out)  # type: ignore[arg-type]
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match=says) as info:
        t.feed("views", ROWS)
    assert "views[0], offset 0" in str(info.value)


# -- sinks


def test_a_sink_gets_every_batch(app: hr.App, views: hr.Stream) -> None:
    got: list[pl.DataFrame] = []
    views.sink(got.append)
    with app.test(2) as t:
        t.feed("views", ROWS, partition=0)
        t.feed("views", ROWS[:1], partition=1)
        t.end()
        assert t.ended
    assert [batch.height for batch in got] == [2, 1]


def test_a_sink_is_handed_again_what_no_checkpoint_covers(app: hr.App, views: hr.Stream) -> None:
    got: list[str] = []
    views.sink(lambda df: got.extend(df["member"]))
    with app.test() as t:
        t.feed("views", ROWS[:1])
        t.restart(checkpoint=True)
        t.feed("views", ROWS[1:])
        t.restart()
    assert got[:2] == ["a", "b"]
    assert set(got[2:]) <= {"b"}


def test_a_sink_that_raises_is_reported_with_its_place(app: hr.App, views: hr.Stream) -> None:
    views.sink(lambda df: print(1 / 0))
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match="the sink function of operator 'sink-1'"):
        t.feed("views", ROWS)
