"""The shared session as users meet it: reuse, checks, slots."""

from __future__ import annotations

import signal

import pytest
from pyspark import SparkContext

from headrace.core.errors import InfrastructureError, UsageError
from headrace.run.spark import session
from headrace.run.spark.session import open_context, open_session
from headrace.run.spark.slots import Asked, Slots, count_slots, decide


def test_a_running_session_is_reused(spark_context: SparkContext) -> None:
    assert open_context("again") is spark_context
    assert open_context("again", "local[2]") is spark_context
    assert open_session("again").sparkContext is spark_context


def test_dataframes_work_and_leave_nothing(spark_context: SparkContext) -> None:
    session = open_session("again")
    assert session.range(10).selectExpr("sum(id)").first()[0] == 45
    warehouse = session.conf.get("spark.sql.warehouse.dir")
    assert "headrace-warehouse" in warehouse


def test_another_master_than_the_running_one_is_an_error(spark_context: SparkContext) -> None:
    with pytest.raises(UsageError, match=r"already running on local\[2\], but this app asks for local\[4\]"):
        open_context("other", "local[4]")


def test_the_settings_of_a_running_session_are_read_once(
    spark_context: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_context("again")
    read: list[str] = []
    monkeypatch.setattr(session, "conf_of", lambda _: read.append("settings"))
    assert open_context("again") is spark_context
    assert read == []


def test_everything_listens_on_this_machine_only(spark_context: SparkContext) -> None:
    assert str(spark_context.uiWebUrl).startswith("http://127.0.0.1:")
    assert spark_context.getConf().get("spark.driver.host") == "127.0.0.1"


def test_interrupts_are_left_to_the_caller(spark_context: SparkContext) -> None:
    assert "pyspark" not in str(getattr(signal.getsignal(signal.SIGINT), "__module__", ""))


def test_slots_are_counted_and_too_few_say_what_to_do(spark_context: SparkContext) -> None:
    assert decide(spark_context, Asked(app="a", tasks=9, containers=2)) == (2, "")
    assert count_slots(spark_context) == Slots(registered=2)
    assert decide(spark_context, Asked(app="a", tasks=9, beside=True)) == (1, "")
    with pytest.raises(InfrastructureError, match=r"app needs 4 container slots, local\[2\] has 2") as caught:
        decide(spark_context, Asked(app="a", tasks=9, containers=4))
    assert caught.value.hint == "use --containers 2 or --master local[4]"
