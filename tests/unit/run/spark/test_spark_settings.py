"""Which masters and settings suit containers."""

from __future__ import annotations

import pytest

from headrace.core.errors import InfrastructureError, UsageError
from headrace.run.spark import settings
from headrace.run.spark.slots import check_promised_slots


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        ("local", "local[1,1000000]"),
        ("local[2]", "local[2,1000000]"),
        ("local[*]", "local[*,1000000]"),
        (" local[ 4 ] ", "local[4,1000000]"),
        ("local[2,3]", "local[2,3]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
        ("yarn", "yarn"),
    ],
)
def test_local_masters_are_set_to_run_failed_tasks_again(asked: str, used: str) -> None:
    assert settings.with_retries(asked) == used


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,9]", 3),
        ("local[*]", None),
        ("local-cluster[2,3,1024]", 6),
        ("yarn", None),
    ],
)
def test_slots_that_a_master_promises(master: str, slots: int | None) -> None:
    assert settings.local_slots(master) == slots


@pytest.mark.parametrize("master", ["locl[2]", "local[two]", "local-cluster[2]", "http://host", ""])
def test_a_master_that_spark_does_not_know_is_refused(master: str) -> None:
    with pytest.raises(UsageError, match="unknown Spark master"):
        settings.check_master(master)


def test_a_master_without_slots_is_refused() -> None:
    with pytest.raises(UsageError, match=r"local\[0\] has no slot"):
        settings.check_master("local[0]")


@pytest.mark.parametrize("master", ["local[2,1000000]", "local-cluster[2,1,1024]", "spark://host:7077"])
def test_what_headrace_sets_itself_is_enough(master: str) -> None:
    assert settings.wrong_settings(master, settings.required().get) == []


def test_a_plain_cluster_session_gives_containers_up_after_four_failures() -> None:
    (wrong,) = settings.wrong_settings("yarn", {}.get)
    assert wrong.startswith("spark.task.maxFailures is 4, but")
    assert wrong.endswith('.config("spark.task.maxFailures", "1000000")')


def test_a_plain_local_session_never_restarts_a_container() -> None:
    """Its other settings don't matter, and ``ContainerJob`` makes up for it."""
    assert settings.wrong_settings("local[2]", {"spark.task.maxFailures": "4"}.get) == []
    few, enough = ("local", "local[2]", "local[*]", "local[2,4]"), ("local[2,1000000]", "local-cluster[2,1,1]", "yarn")
    assert [settings.retries_enough(master) for master in (*few, *enough)] == [False] * 4 + [True] * 3


def test_each_wrong_setting_is_named() -> None:
    given = {"spark.speculation": "true", "spark.excludeOnFailure.enabled": "true", "spark.task.maxFailures": "x"}
    wrong = settings.wrong_settings("spark://host:7077", given.get)
    assert [line.split(" is ")[0] for line in wrong] == [
        "spark.task.maxFailures",
        "spark.speculation",
        "spark.excludeOnFailure.enabled",
    ]


def test_only_sessions_on_this_machine_are_bound_to_it() -> None:
    assert settings.preferred("local[2]")["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in settings.preferred("spark://host:7077")


def test_addresses_of_standalone_masters() -> None:
    assert settings.standalone_addresses("spark://one:7077,[::1]:7078") == [("one", 7077), ("::1", 7078)]
    assert settings.standalone_addresses("local[2]") == []


@pytest.mark.parametrize(
    "master", ["spark://host", "spark://", "spark://:7077", "spark://one:7077,", "spark://h:99999"]
)
def test_a_standalone_master_without_host_or_port_is_refused(master: str) -> None:
    with pytest.raises(UsageError, match="isn't HOST:PORT"):
        settings.check_master(master)


def test_executors_on_this_machine_compile_as_the_driver_does() -> None:
    given = "-XX:TieredStopAtLevel=1 -Dx=y -Xmx2g -XX:+UseSerialGC"
    found = settings.executors_as_driver(given)
    assert found == {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    assert settings.executors_as_driver("-Dx=y") == {}


def test_a_master_that_promises_too_few_slots_is_refused_before_spark_starts() -> None:
    with pytest.raises(InfrastructureError, match=r"app needs 4 container slots, local\[2\] has 2") as caught:
        check_promised_slots("local[2]", 4)
    assert caught.value.hint == "use --containers 2 or --master local[4]"
    for enough in ("local[4]", "local[*]", "local-cluster[2,2,1024]", "yarn"):
        check_promised_slots(enough, 4)
