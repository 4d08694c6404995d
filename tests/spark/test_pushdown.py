"""Expressions on real Spark: what is translated gives what Polars gives, also where files are skipped by it."""

from __future__ import annotations

import datetime as dt
import math
import operator
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from drawn import examples
from headrace.api.operators.steps import Filter
from headrace.plan.planner import plan
from headrace.run.spark.session import open_session
from headrace.spark.batch.expressions import LeadingSteps, Scope, conjuncts, leading_steps, narrowed
from headrace.systems.base import StreamInfo

NAN, INF = math.nan, math.inf
BERLIN = dt.timezone(dt.timedelta(hours=1))
VALUES: dict[str, tuple[pl.DataType, list[Any]]] = {
    "byte": (pl.Int8(), [-128, -1, 0, 1, 5, 127]),
    "short": (pl.Int16(), [-(2**15), -1, 0, 5, 127, 300]),
    "int": (pl.Int32(), [-(2**31), -1, 0, 5, 300, 2**31 - 1]),
    "long": (pl.Int64(), [-(2**63), -1, 0, 5, 2**53 + 1, 2**63 - 1]),
    "single": (pl.Float32(), [-INF, -1.5, -0.0, 0.0, 0.1, 1e-45, 3e38, INF, NAN]),
    "double": (pl.Float64(), [-INF, -1.5, -0.0, 0.0, 0.1, 5e-324, 1e308, 2.0**53, INF, NAN]),
    "text": (pl.String(), ["", "a", "ab", "aB", "Ä", "zü", "\U0001f600", "￿", "a.b", "axb", "%", "ab ", "'\\"]),
    "other.text`": (pl.String(), ["", "a", "b", "ab", "\U0001f600"]),
    "bytes": (pl.Binary(), [b"", b"\x00", b"a", b"a\x00", b"\x80", b"\xff"]),
    "flag": (pl.Boolean(), [False, True]),
    "Other flag": (pl.Boolean(), [False, True]),
    "day": (pl.Date(), [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1969, 12, 31), dt.date(2026, 3, 29)]),
    "local": (
        pl.Datetime("us"),
        [
            dt.datetime(1, 1, 1),
            dt.datetime(1582, 10, 10, 1, 2, 3, 4),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
            dt.datetime(2026, 3, 29, 2, 30),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
        ],
    ),
    "instant": (
        pl.Datetime("us", "UTC"),
        [
            dt.datetime(1, 1, 2, tzinfo=dt.UTC),
            dt.datetime(1893, 3, 31, 23, 0, 0, 1, tzinfo=dt.UTC),
            dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
            dt.datetime(2026, 10, 25, 1, 30, tzinfo=BERLIN),
        ],
    ),
    "price": (pl.Decimal(10, 2), [Decimal(text) for text in ("-99999999.99", "-0.01", "0.00", "1.50", "5", "7.10")]),
    "total": (pl.Decimal(38, 10), [Decimal(text) for text in ("-1.5", "0", "1.5000000001", "9" * 28)]),
}
COLUMNS = {name: dtype for name, (dtype, _) in VALUES.items()}
INTEGERS = ["byte", "short", "int", "long"]
FLOATS = ["single", "double"]
TEXTS = ["text", "other.text`"]
FLAGS = ["flag", "Other flag"]
GROUPS = [INTEGERS, FLOATS, TEXTS, FLAGS, *([name] for name in ("bytes", "day", "local", "instant", "price", "total"))]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge", "eq_missing", "ne_missing"]

Exprs: TypeAlias = st.SearchStrategy[pl.Expr]


def a_column(name: str) -> pl.Expr:
    """Hypothesis can't report a failure of ``map(pl.col)``: it asks for ``pl.col.__name__``, which is a column."""
    return pl.col(name)


def as_stored(name: str, value: Any) -> Any:
    """A value as a column of that name holds it: 0.1 is another number in 32 bits."""
    return struct.unpack("f", struct.pack("f", value))[0] if name == "single" else value


def literals(name: str) -> Exprs:
    """Values near those of the column, mostly of its own type."""
    dtype, values = VALUES[name]
    stored = st.sampled_from([as_stored(name, value) for value in values])
    plain = stored.map(pl.lit)
    typed = stored.map(lambda value: pl.lit(value, dtype=dtype))
    if name in INTEGERS:
        return plain | typed | st.integers(-(2**63), 2**63 - 1).map(pl.lit) | st.integers(-400, 400).map(pl.lit)
    if name in FLOATS:
        doubles = st.sampled_from(VALUES["double"][1]).map(lambda value: pl.lit(value, dtype=pl.Float64))
        return plain | typed | doubles | st.floats().map(pl.lit) | st.integers(-3, 3).map(pl.lit)
    return plain | st.sampled_from([pl.lit(None), pl.lit(5), pl.lit(1.5)]) if dtype.is_decimal() else plain


@st.composite
def numbers(draw: st.DrawFn) -> pl.Expr:
    """Arithmetic with at least one floating-point column."""
    left = draw(st.sampled_from(FLOATS).map(a_column))
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from([*FLOATS, *INTEGERS]))
        right = draw(st.just(pl.col(name)) | literals("double") | literals("single"))
        one, two = draw(st.permutations([left, right]))
        left = draw(st.sampled_from([one + two, one - two, one * two]))
    return left


@st.composite
def comparisons(draw: st.DrawFn) -> pl.Expr:
    group = draw(st.sampled_from(GROUPS))
    name = draw(st.sampled_from(group))
    others = st.sampled_from(group).map(a_column) | literals(name)
    value = pl.col(name)
    if name in FLOATS and draw(st.booleans()):
        value = draw(numbers())
    if draw(st.integers(0, 3)) == 0:
        closed = draw(st.sampled_from(["both", "left", "right", "none"]))
        return value.is_between(draw(others), draw(others), closed=closed)  # type: ignore[arg-type]
    left, right = draw(st.permutations([value, draw(others)]))
    return getattr(left, draw(st.sampled_from(COMPARISONS)))(right)  # type: ignore[no-any-return]


@st.composite
def memberships(draw: st.DrawFn) -> pl.Expr:
    name = draw(st.sampled_from([name for name in VALUES if name not in FLOATS]))
    dtype, values = VALUES[name]
    chosen: list[Any] = draw(st.lists(st.sampled_from([*values, None]), max_size=5))
    if name in INTEGERS and draw(st.booleans()):
        chosen += draw(st.lists(st.integers(-130, 400), max_size=20))
    listed = (
        draw(st.sampled_from([chosen, pl.Series(chosen, dtype=dtype).implode()]))
        if set(chosen) <= {*values, None}
        else chosen
    )
    return pl.col(name).is_in(listed, nulls_equal=draw(st.booleans()))


@st.composite
def texts(draw: st.DrawFn) -> pl.Expr:
    text = pl.col(draw(st.sampled_from(TEXTS)))
    part = draw(st.sampled_from(VALUES["text"][1]))
    return draw(
        st.sampled_from(
            [
                text.str.starts_with(part),
                text.str.ends_with(part),
                text.str.contains(part, literal=True),
                text.str.contains(part.replace("\\", "")),
            ]
        )
    )


def leaves() -> Exprs:
    null_tests = st.sampled_from(list(VALUES)).flatmap(
        lambda name: st.sampled_from([pl.col(name).is_null(), pl.col(name).is_not_null()])
    )
    flags = st.sampled_from([pl.col("flag"), pl.col("Other flag"), pl.lit(True), pl.lit(False)])
    return comparisons() | comparisons() | memberships() | texts() | null_tests | flags


def combined(inner: Exprs) -> Exprs:
    return st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] ^ pair[1]),
        st.lists(inner, min_size=1, max_size=3).map(pl.all_horizontal),
        st.lists(inner, min_size=1, max_size=3).map(pl.any_horizontal),
        inner.map(lambda expr: ~expr),
        inner.map(lambda expr: expr.alias("other")),
    )


PREDICATES = st.recursive(leaves(), combined, max_leaves=4)
CASTS = st.tuples(
    st.sampled_from([*INTEGERS, *FLOATS]), st.sampled_from([pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64])
).map(lambda cast: pl.col(cast[0]).cast(cast[1]))
PROJECTIONS = PREDICATES | numbers() | CASTS | st.sampled_from(list(VALUES)).map(a_column)


def frames(rows_max: int = 40) -> st.SearchStrategy[pl.DataFrame]:
    row = st.tuples(*(st.sampled_from([*values, None]) for _, values in VALUES.values()))
    return st.lists(row, min_size=1, max_size=rows_max).map(
        lambda rows: pl.DataFrame(rows, schema=COLUMNS, orient="row").with_row_index("id").cast({"id": pl.Int64})
    )


@pytest.fixture
def session(spark_context: SparkContext) -> SparkSession:
    session = open_session("tests").newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    return session


def stored(session: SparkSession, frame: pl.DataFrame, folder: Path) -> DataFrame:
    """The frame as a Parquet file that has a row group, with statistics, for each three rows."""
    path = folder / "rows.parquet"
    pq.write_table(frame.to_arrow(), path, row_group_size=3)
    return session.read.parquet(str(path))


# Each example is a query of a second or more, so a failure isn't shrunk: it names the expression.
few = settings(
    max_examples=examples(5),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


def check_values(table: DataFrame, frame: pl.DataFrame, exprs: list[pl.Expr]) -> int:
    """Compare what Spark computes with what Polars does, and return how many of the expressions are translated."""
    pairs = [(expr, Scope.over(COLUMNS).term(expr)) for expr in exprs]
    translated = {f"x{n}": (expr, term) for n, (expr, term) in enumerate(pairs) if term is not None}
    asked = table.select("id", *(term.column().alias(name) for name, (_, term) in translated.items()))
    results = pl.DataFrame(asked.toArrow()).sort("id")
    expected = frame.select("id", *(expr.alias(name) for name, (expr, _) in translated.items()))
    same = results.schema == expected.schema and results.equals(expected)
    for name, (expr, _) in () if same else translated.items():
        try:
            assert_frame_equal(results.select(name), expected.select(name), check_exact=True)
        except AssertionError as error:
            raise AssertionError(f"{expr}\n{expr.meta.serialize(format='json')}") from error
    return len(translated)


@few
@given(frame=frames(), exprs=st.lists(PROJECTIONS, min_size=60, max_size=90))
def test_spark_computes_what_polars_computes(
    session: SparkSession, tmp_path: Path, frame: pl.DataFrame, exprs: list[pl.Expr]
) -> None:
    assert check_values(stored(session, frame, tmp_path), frame, exprs) > len(exprs) / 4


def every_literal(name: str) -> list[pl.Expr]:
    """All values of a column, as literals of each type that a user might give them."""
    dtype, values = VALUES[name]
    found = [pl.lit(as_stored(name, value)) for value in values]
    group = next(group for group in GROUPS if name in group)
    for other in group if name in (*INTEGERS, *FLOATS) else []:
        for value in VALUES[other][1]:
            found.append(pl.lit(value))
            found.append(pl.lit(as_stored(other, value), dtype=COLUMNS[other]))
    return found if dtype != pl.Decimal(10, 2) else [*found, *(pl.lit(value) for value in VALUES["total"][1])]


def every_test_of_text() -> list[pl.Expr]:
    text, parts = pl.col("text"), VALUES["text"][1]
    tests = [test(part) for part in parts for test in (text.str.starts_with, text.str.ends_with)]
    tests += [text.str.contains(part, literal=True) for part in parts]
    return tests + [text.str.contains(part) for part in parts if "\\" not in part]


def every_sum() -> list[pl.Expr]:
    """Sums and products, alone and inside others: what is around one may hide that it has another precision."""
    single, double = pl.Float32(), pl.Float64()
    constants = [pl.lit(0.1), pl.lit(0.5), pl.lit(3), pl.lit(0.5, dtype=double), pl.lit(0.5, dtype=single)]
    others = [*map(a_column, (*INTEGERS, *FLOATS)), *constants]
    operands = [(pl.col(name), other) for name in FLOATS for other in others]
    inner = [result for left, right in operands for result in (left + right, right * left, left - right)]
    zero = pl.lit(0.0, dtype=double)
    return [*inner, *(outer for sum_ in inner for outer in (sum_ + zero, sum_ * pl.col("double"), sum_ > 0.5))]


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_every_operator_with_every_literal(session: SparkSession, tmp_path: Path, step: int) -> None:
    """Every fifth combination, which is each operator with some literals; all of them take half a minute."""
    longest = max(len(values) for _, values in VALUES.values())
    cells = {
        name: pl.Series([*values, *[None] * (longest + 1 - len(values))], dtype=dtype)
        for name, (dtype, values) in VALUES.items()
    }
    frame = pl.DataFrame(cells).with_row_index("id").cast({"id": pl.Int64})
    table = stored(session, frame, tmp_path)
    exprs = [
        getattr(pl.col(name), how)(value) for name in VALUES for value in every_literal(name) for how in COMPARISONS
    ]
    exprs += [
        pl.col(name).is_in([*values, None][start:], nulls_equal=nulls_equal)
        for name, (_, values) in VALUES.items()
        for start in range(len(values))
        for nulls_equal in (False, True)
        if name not in FLOATS
    ]
    exprs += every_test_of_text()
    exprs += [pl.col(a).cast(COLUMNS[b]) for a in (*INTEGERS, *FLOATS) for b in (*INTEGERS, *FLOATS)]
    exprs += every_sum()
    exprs = exprs[::step]
    chunks = [exprs[start : start + 300] for start in range(0, len(exprs), 300)]
    assert sum(check_values(table, frame, chunk) for chunk in chunks) > 1000 / step


@few
@given(frame=frames(), predicates=st.lists(comparisons() | memberships() | PREDICATES, min_size=25, max_size=30))
def test_filters_keep_the_rows_that_polars_keeps(
    session: SparkSession, tmp_path: Path, frame: pl.DataFrame, predicates: list[pl.Expr]
) -> None:
    check_filters(stored(session, frame, tmp_path), frame, predicates)


def test_statistics_of_files_drop_neither_nan_nor_zero(session: SparkSession, tmp_path: Path) -> None:
    # Spark alone loses rows here: pyarrow leaves NaN out of a row group's bounds, and its bounds of -0.0 are -0.0.
    groups = [[1.0, 2.0, NAN], [-0.0] * 3, [0.0] * 3, [NAN] * 3]
    doubles = pl.Series("double", [value for group in groups for value in group])
    frame = pl.DataFrame({"double": doubles, "single": doubles.cast(pl.Float32)}).with_row_index("id")
    table = stored(session, frame.cast({"id": pl.Int64}), tmp_path)
    assert table.where(F.col("double") > 5).count() < 4, "Spark has fixed it: nanvl isn't needed any more"
    compared = [
        getattr(pl.col(name), how)(literal)
        for name in FLOATS
        for how in ("eq", "le", "gt", "ge")
        for literal in (0.0, -0.0, 5.0)
    ]
    check_filters(table, frame, [*compared, ~(pl.col("double") <= 5)])


def check_filters(table: DataFrame, frame: pl.DataFrame, predicates: list[pl.Expr]) -> None:
    """Spark's part of each predicate and then the rest keep the rows that Polars keeps."""
    kept: list[tuple[pl.Expr, pl.Expr | None, DataFrame]] = []
    scope = Scope.over(COLUMNS)
    for predicate in predicates:
        column = scope.condition(predicate)
        if column is not None:
            rows = table.where(column).select(F.lit(len(kept)).alias("query"), "id")
            parts = [part for part in conjuncts(predicate) if scope.condition(part) is None]
            kept.append((predicate, reduce(operator.and_, parts) if parts else None, rows))
    assert kept
    union = kept[0][2]
    for _, _, rows in kept[1:]:
        union = union.union(rows)
    results = pl.DataFrame(union.toArrow())
    for number, (predicate, rest, _) in enumerate(kept):
        ids = results.filter(pl.col("query") == number).select("id")
        left = frame.join(ids, on="id", how="semi")
        left = left if rest is None else left.filter(rest)
        expected = frame.filter(predicate)
        assert sorted(left["id"]) == sorted(expected["id"]), f"{predicate}\n{predicate.meta.serialize(format='json')}"


# -- inputs


VIEWS = {"day": pl.Date(), "member": pl.String(), "ms": pl.Int64(), "x": pl.Float64(), "ts": pl.Int64()}


def leading(steps: Callable[[hr.Stream], hr.Stream]) -> LeadingSteps:
    app = hr.App("pushdown")
    views = app.input("views", VIEWS, event_time="ts")
    steps(views).deduplicate("member", within="1h", id="d").send_to(app.output("out"))
    planned = plan(app.graph(), {"views": StreamInfo("views", 1)})
    return leading_steps(planned, planned.stages[0], "views")


def after(found: LeadingSteps, frame: pl.DataFrame) -> pl.DataFrame:
    """What the stage makes of its input."""
    for step in found.steps:
        if isinstance(step, Filter):
            frame = frame.filter(step.predicate)
        else:
            frame = frame.with_columns(*step.exprs) if step.keep else frame.select(*step.exprs)
    return frame


def views_of(days: int) -> pl.DataFrame:
    rows = [
        (dt.date(2026, 1, 1) + dt.timedelta(day), member, ms, None if ms is None else ms / 4, day * 10)
        for day in range(days)
        for member in ("a", "b", None)
        for ms in (1, 5, None)
    ]
    return pl.DataFrame(rows, schema=VIEWS, orient="row")


def test_a_year_that_is_asked_for_a_day_reads_a_day(session: SparkSession, tmp_path: Path) -> None:
    for (day,), rows in views_of(20).group_by("day"):
        folder = tmp_path / f"day={day}"
        folder.mkdir()
        rows.drop("day").write_parquet(folder / "rows.parquet")
    schema = "member string, ms bigint, x double, ts bigint, day date"
    year = session.read.schema(schema).parquet(str(tmp_path))
    one = dt.date(2026, 1, 7)
    for path in tmp_path.glob("day=*/rows.parquet"):
        if path.parent.name != f"day={one}":
            path.write_bytes(b"PAR1 whoever reads this fails PAR1")
    found = leading(lambda views: views.filter((pl.col("day") == one) & (pl.col("ms") + 1 > 2)))
    read = pl.DataFrame(narrowed(year, found, VIEWS).toArrow()).select(*VIEWS)
    expected = views_of(20).filter(pl.col("day") == one)
    assert_frame_equal(read, expected, check_row_order=False)


def test_filters_behind_projections_reach_the_file(session: SparkSession, tmp_path: Path) -> None:
    frame = views_of(5)
    path = tmp_path / "rows.parquet"
    frame.write_parquet(path)
    found = leading(
        lambda views: (
            views.with_columns(who="member", member=pl.col("member").str.to_uppercase(), double=pl.col("x") * 2)
            .filter((pl.col("who") == "a") & (pl.col("member") == "A") & (pl.col("double") < 2))
            .select("member", "ts", took="ms")
            .filter(pl.col("took") >= 1)
        )
    )
    whole = session.read.parquet(str(path))
    less = narrowed(whole, found, VIEWS)
    assert less.columns == ["member", "ms", "x", "ts"]
    spark_plan = less._jdf.queryExecution().executedPlan().toString()
    assert "EqualTo(member,a)" in spark_plan
    assert "GreaterThanOrEqual(ms,1)" in spark_plan
    read = pl.DataFrame(less.toArrow())
    assert 0 < read.height < frame.height
    assert_frame_equal(after(found, read), after(found, frame), check_row_order=False)


def test_texts_that_spark_compares_in_another_way_stay_with_polars(session: SparkSession, tmp_path: Path) -> None:
    frame = views_of(1)
    frame.write_parquet(tmp_path / "rows.parquet")
    rows = session.read.parquet(str(tmp_path))
    found = leading(lambda views: views.filter(pl.col("member") == "A"))
    without_case = rows.withColumn("member", F.collate("member", "UTF8_LCASE"))
    assert without_case.where(F.col("member") == "A").count() > 0
    assert narrowed(without_case, found, VIEWS).count() == frame.height
    assert narrowed(rows, found, VIEWS).count() == 0


def test_a_padded_text_stays_with_polars(session: SparkSession) -> None:
    session.sql("CREATE TABLE padded (member CHAR(3), ts BIGINT) USING parquet")
    try:
        session.sql("INSERT INTO padded VALUES ('a', 1), ('b', 2)")
        rows = session.table("padded")
        columns = {"member": pl.String(), "ts": pl.Int64()}
        found = LeadingSteps(steps=(Filter(pl.col("member") != "a"), Filter(pl.col("ts") < 3)), columns=None)
        assert rows.where(F.col("member") != "a").count() == 1
        read = pl.DataFrame(narrowed(rows, found, columns).toArrow())
        assert after(found, read).height == 2
    finally:
        session.sql("DROP TABLE padded")


def test_names_that_differ_in_case_only_are_left_alone(session: SparkSession) -> None:
    rows = session.createDataFrame([(1, 2), (3, 4)], "n long, N long")
    found = LeadingSteps(steps=(Filter(pl.col("n") > 1),), columns=("n",))
    assert narrowed(rows, found, {"n": pl.Int64(), "N": pl.Int64()}).columns == ["n", "N"]


def test_spark_checks_the_parts_of_a_conjunction_that_it_can(session: SparkSession) -> None:
    pushed = Scope.over({"n": pl.Int64()}).condition((pl.col("n") > 0) & (pl.col("n") + 1 > 2) & (pl.col("n") < 9))
    assert pushed is not None
    rows = session.createDataFrame([(0,), (1,), (8,), (9,)], "n long")
    assert [row.n for row in rows.where(pushed).collect()] == [1, 8]
