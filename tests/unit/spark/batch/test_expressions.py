"""What is translated for Spark, what is left to Polars, and what a stage lets Spark leave out. No Spark runs here."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import polars as pl
import polars.selectors as cs
import pytest
from pyspark.sql import types as T

import headrace as hr
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.spark.batch.expressions import LeadingSteps, Scope, leading_steps, plain_columns
from headrace.systems.base import StreamInfo

COLUMNS = {
    "n": pl.Int64(),
    "small": pl.Int8(),
    "x": pl.Float64(),
    "single": pl.Float32(),
    "url": pl.String(),
    "raw": pl.Binary(),
    "ok": pl.Boolean(),
    "day": pl.Date(),
    "at": pl.Datetime("us", "UTC"),
    "local": pl.Datetime("us"),
    "ms": pl.Datetime("ms"),
    "price": pl.Decimal(10, 2),
    "tags": pl.List(pl.String()),
    "unsigned": pl.UInt32(),
    "kind": pl.Enum(["a", "b"]),
    "spelled": pl.Int64(),
    "Spelled": pl.Int64(),
}
c = pl.col


@pytest.mark.parametrize(
    "expr",
    [
        c("n"),
        c("n").alias("m"),
        pl.lit(5),
        c("n") > 5,
        pl.lit(5) < c("n"),
        c("n") == c("small"),
        c("n").eq_missing(5),
        c("n").ne_missing(c("small")),
        c("x") >= 0.5,
        c("single") == c("x"),
        c("single") < 0.5,
        c("x") * 2 + c("single") - c("n") > 1,
        c("url") == "/",
        c("raw") == b"\x00",
        c("ok"),
        ~c("ok") | (c("n") > 1) & c("ok"),
        c("ok") ^ c("ok"),
        pl.all_horizontal("ok", c("n") > 1),
        pl.any_horizontal("ok", c("n") > 1),
        c("url").is_null(),
        c("x").is_not_null(),
        c("day") == dt.date(2026, 1, 1),
        c("at") < dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        c("at") < dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        c("local").is_between(dt.datetime(2026, 1, 1), dt.datetime(2026, 2, 1), closed="left"),
        c("price") > Decimal("1.5"),
        c("n").is_in([1, 2, None]),
        c("url").is_in(["a", None], nulls_equal=True),
        c("day").is_in([dt.date(2026, 1, 1)]),
        c("price").is_in([Decimal("1.5")]),
        c("url").str.starts_with("/a"),
        c("url").str.ends_with("?"),
        c("url").str.contains("?", literal=True),
        c("url").str.contains("a/b"),
        c("small").cast(pl.Int64) > 300,
        c("single").cast(pl.Float64),
    ],
    ids=str,
)
def test_translated(expr: pl.Expr) -> None:
    assert Scope.over(COLUMNS).term(expr) is not None, expr.meta.serialize(format="json")


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        (c("n") + 1 > 5, "Polars wraps, Spark raises"),
        (c("n") * c("n"), "the same"),
        ((c("single") - c("small")) + pl.lit(0.0, dtype=pl.Float64), "is computed in 32 bits"),
        (c("single") + c("small") > 1, "the same"),
        (c("single") + pl.lit(0.5, dtype=pl.Float64) > 1, "is computed in 64 bits"),
        ((c("single") + pl.lit(0.5, dtype=pl.Float64)) * c("x"), "the same"),
        (c("x") / 2, "by zero, Polars is infinite"),
        (c("n") // 2, "rounds another way"),
        (c("x") % 2, "has another sign"),
        (c("n") > 0.5, "Spark has its own common type"),
        (c("n") == c("x"), "the same"),
        (c("n") > 2**63, "isn't an Int64"),
        (c("small") > 300, "isn't an Int8"),
        (c("single") == 0.1, "0.1 is another number in 32 bits"),
        (c("x") == 2**53 + 1, "is no Float64"),
        (c("x") == pl.lit(math.nan), "JSON has no NaN"),
        (c("x") < math.inf, "JSON has no infinity"),
        (c("x").is_in([0.0, 1.0]), "a long list of Spark's tells -0.0 from 0.0"),
        (c("n").is_in([]), "Spark and Polars differ for null"),
        (c("n").is_in([1.5, 0.5]), "has another type"),
        (c("url").is_in(c("tags")), "is another list for each row"),
        (c("price") > Decimal("1.555"), "would be rounded"),
        (c("price") > Decimal(10**9), "doesn't fit"),
        (c("price") > 1, "has another type"),
        (c("price") + c("price"), "the precisions of results differ"),
        (c("url") == pl.lit(None), "isn't worth it"),
        (c("url").str.contains("a.b"), "patterns differ"),
        (c("url").str.contains(c("url"), literal=True), "isn't covered"),
        (c("url").str.to_lowercase() == "a", "depends on versions of Unicode"),
        (c("url").str.len_chars() > 1, "isn't covered"),
        (c("x").cast(pl.Int64), "rounds or raises"),
        (c("n").cast(pl.Int8), "overflows"),
        (c("n").cast(pl.Float64), "rounds"),
        (c("n").cast(pl.String), "depends on formats"),
        (c("at").dt.date(), "depends on time zones"),
        (c("local") > c("at"), "Polars raises"),
        (c("at") > dt.datetime(2026, 1, 1), "the literal has no zone"),
        (c("day") > dt.datetime(2026, 1, 1), "has another type"),
        (c("ms") > dt.datetime(2026, 1, 1), "Spark has no milliseconds"),
        (c("tags"), "isn't compared alike"),
        (c("unsigned") > 1, "Spark has no unsigned integers"),
        (c("kind") == "a", "Spark has no such type"),
        (c("spelled") > 1, "Spark doesn't tell it from Spelled"),
        (c("missing") > 1, "there is no such column"),
        (c("n", "small"), "are two columns"),
        (cs.numeric() > 1, "are several columns"),
        (c("n") > c("small").max(), "reads several rows"),
        (c("n").shift() > 1, "reads several rows"),
        (c("n").map_batches(lambda n: n > 1, return_dtype=pl.Boolean), "is a Python function"),
        (pl.when("ok").then("n").otherwise(0), "isn't covered"),
        (pl.lit(1) > pl.lit(2), "has no column"),
        (c("ok") & c("n"), "isn't Boolean"),
        (~c("n"), "is bitwise"),
        (c("n") & c("small"), "is bitwise"),
    ],
    ids=str,
)
def test_left_to_polars(expr: pl.Expr, why: str) -> None:
    assert Scope.over(COLUMNS).term(expr) is None, why


def test_an_unknown_form_is_left_to_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars may serialize another way one day."""
    forms = ["[]", "1", '{"Column": 1}', '{"Col": "n"}', '{"BinaryExpr": {"op": "Gt"}}', '{"Literal": 5}']
    for form in forms:
        monkeypatch.setattr("headrace.spark.batch.expressions._serialized", lambda _, form=form: form)
        assert Scope.over(COLUMNS).term(c("n")) is None, form
    monkeypatch.undo()
    assert Scope.over(COLUMNS).term(c("n")) is not None


def test_what_nobody_can_translate_stays_whole() -> None:
    predicate = (c("n") + 1 > 5) & (c("url").str.len_chars() > 1)
    assert Scope.over(COLUMNS).condition(predicate) is None


def test_parts_that_are_no_booleans_are_not_pushed() -> None:
    assert Scope.over(COLUMNS).condition(c("n")) is None


# -- scopes


def test_a_projection_renames_computes_and_drops() -> None:
    scope = Scope.over(COLUMNS).projected([c("n").alias("m"), c("x") * 2, (c("n") + 1).alias("small")], keep=False)
    assert scope.term(c("m") > 1) is not None
    assert scope.term(c("x") > 1) is not None
    assert scope.term(c("small") > 1) is None
    assert scope.term(c("n") > 1) is None


def test_a_replaced_column_is_no_longer_the_old_one() -> None:
    scope = Scope.over(COLUMNS).projected([c("url").str.to_lowercase(), c("n").alias("x")], keep=True)
    assert scope.term(c("url") == "/") is None
    assert scope.term(c("x") == 1) is not None
    assert scope.term(c("x") == 1.5) is None


def test_expressions_of_one_projection_see_what_was_there_before() -> None:
    scope = Scope.over(COLUMNS).projected([c("x").alias("n"), c("n").alias("x")], keep=True)
    assert scope.term(c("n") > 0.5) is not None
    assert scope.term(c("x") > 0.5) is None


def test_selectors_keep_columns_and_compute_unknown_ones() -> None:
    kept = Scope.over(COLUMNS).projected([cs.numeric()], keep=False)
    assert kept.term(c("n") > 1) is not None
    assert kept.term(c("url") == "/") is None
    assert Scope.over(COLUMNS).projected([cs.numeric() + 1], keep=True).term(c("n") > 1) is None


# -- columns of DataFrames


def test_plain_columns_have_the_declared_type_and_the_order_of_bytes() -> None:
    padded = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
    schema = T.StructType(
        [
            T.StructField("n", T.LongType()),
            T.StructField("small", T.IntegerType()),
            T.StructField("url", T.StringType("UTF8_LCASE")),
            T.StructField("raw", T.BinaryType()),
            T.StructField("at", T.TimestampType()),
            T.StructField("local", T.TimestampType()),
            T.StructField("ms", T.TimestampNTZType()),
            T.StructField("price", T.DecimalType(10, 2)),
            T.StructField("text", T.StringType()),
            T.StructField("code", T.StringType(), metadata=padded),
            T.StructField("x", T.DoubleType()),
            T.StructField("X", T.LongType()),
            T.StructField("more", T.LongType()),
        ]
    )
    columns = {**COLUMNS, "text": pl.String(), "code": pl.String()}
    assert plain_columns(columns, schema) == {"n", "raw", "at", "price", "text"}


def test_decimals_of_another_scale_are_not_plain() -> None:
    schema = T.StructType([T.StructField("price", T.DecimalType(12, 2))])
    assert plain_columns(COLUMNS, schema) == set()


# -- stages

VIEWS = {"member": pl.String, "url": pl.String, "ms": pl.Int64, "ts": pl.Int64}


def planned(app: hr.App) -> Plan:
    return plan(app.graph(), {name: StreamInfo(name, 2) for name in ("views", "others")})


def leading(planned: Plan, input_id: str = "views") -> LeadingSteps:
    (stage,) = (stage for stage in planned.stages if input_id in stage.inputs)
    return leading_steps(planned, stage, input_id)


def test_filters_and_projections_lead_until_the_first_other_step() -> None:
    app = hr.App("pushdown")
    views = app.input("views", VIEWS, key="member", event_time="ts")
    long = views.filter(c("ms") > 5).select("member", "ts", half=c("ms") / 2).filter(c("half") < 100)
    last = long.deduplicate("member", within="1h", id="d").filter(c("half") > 10)
    last.send_to(app.output("out"))
    found = leading(planned(app))
    assert [step.kind for step in found.steps] == ["filter", "select", "filter"]
    assert found.columns == ("member", "ms", "ts")


def test_the_event_time_is_needed_even_if_no_step_reads_it() -> None:
    app = hr.App("pushdown")
    app.input("views", VIEWS, event_time="ts").select("url").send_to(app.output("out"))
    found = leading(planned(app))
    assert [step.kind for step in found.steps] == ["select"]
    assert found.columns == ("url", "ts")


def test_nothing_leads_where_the_flow_branches() -> None:
    app = hr.App("pushdown")
    views = app.input("views", VIEWS, event_time="ts")
    views.filter(c("ms") > 5).send_to(app.output("long"))
    views.filter(c("ms") <= 5).send_to(app.output("short"))
    assert leading(planned(app)) == LeadingSteps(steps=(), columns=None)


def test_steps_behind_a_merge_do_not_lead() -> None:
    app = hr.App("pushdown")
    views = app.input("views", VIEWS, event_time="ts")
    others = app.input("others", VIEWS, event_time="ts")
    views.filter(c("ms") > 5).merge(others).filter(c("url") == "/").send_to(app.output("out"))
    whole = planned(app)
    assert [step.detail or step.expressions[0] for step in leading(whole).steps] == ['[(col("ms")) > (dyn int: 5)]']
    assert leading(whole, "others").steps == ()


def test_a_function_of_the_user_ends_them() -> None:
    app = hr.App("pushdown")
    views = app.input("views", VIEWS, event_time="ts")
    views.filter(lambda row: row["ms"] > 5).filter(c("url") == "/").send_to(app.output("out"))
    assert leading(planned(app)) == LeadingSteps(steps=(), columns=None)


def test_they_end_with_the_stage() -> None:
    app = hr.App("pushdown")
    views = app.input("views", VIEWS, event_time="ts")
    views.filter(c("ms") > 5).partition_by("member", id="by-member").filter(c("url") == "/").send_to(app.output("out"))
    whole = planned(app)
    assert len(leading(whole, "by-member").steps) == 1
