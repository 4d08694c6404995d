"""How many containers an app gets, how long it waits for them, and what it says; time and slots are numbers."""

from __future__ import annotations

import pytest

from headrace.core.errors import InfrastructureError
from headrace.run.spark.slots import (
    FREED_S,
    SETTLED_S,
    WAIT_S,
    Asked,
    Capacity,
    Slots,
    decided,
    lacking,
    note_on,
    waits,
)

CLUSTER = "spark://host:7077"
REQUESTED = {"spark.executor.instances": "2", "spark.executor.cores": "2"}


def capacity(master: str, **conf: str) -> Capacity:
    return Capacity.of(master, {name.replace("_", "."): value for name, value in conf.items()}.get)


def asked(tasks: int, containers: int | None = None, *, beside: bool = False) -> Asked:
    return Asked(app="visits", tasks=tasks, containers=containers, beside=beside)


@pytest.mark.parametrize(
    ("master", "conf", "limit"),
    [
        ("local[4]", {}, 4),
        ("local[4]", {"spark.task.cpus": "2"}, 2),
        ("local[*,1000]", {}, None),
        ("local-cluster[2,3,1024]", {"spark.task.cpus": "2"}, 2),
        (CLUSTER, {}, None),
        (CLUSTER, REQUESTED, None),
        (CLUSTER, {"spark.cores.max": "8"}, 8),
        (CLUSTER, {"spark.cores.max": "8", "spark.executor.cores": "3"}, 6),
        ("yarn", REQUESTED, 4),
        ("k8s://https://host", {"spark.executor.instances": "3"}, 3),
        ("yarn", {}, None),
        (
            "yarn",
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "5",
                "spark.executor.cores": "2",
            },
            10,
        ),
    ],
)
def test_what_a_session_can_have(master: str, conf: dict[str, str], limit: int | None) -> None:
    assert Capacity.of(master, conf.get).limit == limit


def arrivals(asked: Asked, capacity: Capacity, at: dict[int, float], taken: int = 0) -> tuple[float, int]:
    """Have slots register at these seconds; return when the wait is over, and how many slots there are then."""
    changed, before = 0.0, -1
    for step in range(2000):
        now = step / 10
        registered = sum(count for count, second in at.items() if second <= now)
        changed = now if registered != before else changed
        before = registered
        if not waits(asked, capacity, Slots(registered=registered, taken=taken), now, now - changed):
            return now, registered
    raise AssertionError("it waits forever")


@pytest.mark.parametrize(
    ("asked", "capacity", "at", "over"),
    [
        (asked(12, 4), capacity(CLUSTER), {2: 1.0, 3: 40.0}, (40.0, 5)),
        (asked(12, 4), Capacity.of(CLUSTER, REQUESTED.get), {2: 1.0, 3: 9.0}, (9.0, 5)),
        (asked(12, 4), capacity(CLUSTER), {2: 1.0}, (WAIT_S, 2)),
        (asked(12, 4), capacity(CLUSTER, spark_cores_max="3"), {2: 1.0}, (0.0, 0)),
        (asked(12, 4), capacity("local[2]"), {2: 0.0}, (0.0, 2)),
        (asked(12, 4), capacity("local[*]"), {2: 0.1}, (0.1, 2)),
        (asked(12), capacity("local[*]"), {2: 0.1}, (0.1, 2)),
        (asked(12), capacity(CLUSTER), {1: 2.0, 2: 5.0, 3: 8.0}, (8.0 + SETTLED_S, 6)),
        (asked(12), capacity(CLUSTER), {1: 2.0, 20: 5.0}, (5.0, 21)),
        (asked(12), capacity(CLUSTER), {1: 200.0}, (WAIT_S, 0)),
        (asked(12), Capacity.of("yarn", REQUESTED.get), {2: 1.0, 3: 30.0}, (30.0, 5)),
        (asked(12), Capacity.of("yarn", REQUESTED.get), {2: 1.0}, (WAIT_S, 2)),
        (asked(2, beside=True), capacity("local-cluster[3,1,1024]"), {2: 1.0, 1: 4.0}, (4.0, 3)),
        (asked(2), capacity("local-cluster[3,1,1024]"), {2: 1.0, 1: 4.0}, (1.0, 2)),
    ],
)
def test_slots_are_waited_for(asked: Asked, capacity: Capacity, at: dict[int, float], over: tuple[float, int]) -> None:
    assert arrivals(asked, capacity, at) == over


def test_slots_of_jobs_that_end_become_free() -> None:
    assert arrivals(asked(2), capacity("local[2]"), {2: 0.0}, taken=1) == (FREED_S, 2)
    assert arrivals(asked(2, 2), capacity("local[2]"), {2: 0.0}, taken=1) == (0.0, 2)


@pytest.mark.parametrize(
    ("asked", "slots", "containers"),
    [
        (asked(12), Slots(registered=4), 4),
        (asked(3), Slots(registered=4), 3),
        (asked(12), Slots(registered=4, taken=1), 3),
        (asked(12, beside=True), Slots(registered=4), 3),
        (asked(3, beside=True), Slots(registered=4), 3),
        (asked(12, beside=True), Slots(registered=4, taken=1), 2),
        (asked(12, beside=True), Slots(registered=1), 1),
        (asked(12), Slots(registered=4, taken=4), 1),
        (asked(12, 4, beside=True), Slots(registered=4), 4),
    ],
)
def test_code_beside_an_app_keeps_a_slot(asked: Asked, slots: Slots, containers: int) -> None:
    assert decided(asked, capacity(CLUSTER), slots, 5.0) == containers


def test_what_is_missing_is_said() -> None:
    with pytest.raises(InfrastructureError, match="app needs 4 container slots, but only 2 of spark://host:7077 regis"):
        decided(asked(12, 4), capacity(CLUSTER), Slots(registered=2), WAIT_S)
    with pytest.raises(InfrastructureError, match="app needs 4 container slots, spark://host:7077 has 3"):
        decided(asked(12, 4), capacity(CLUSTER, spark_cores_max="3"), Slots(registered=2), 1.0)
    with pytest.raises(InfrastructureError, match=r"app needs 4 container slots, local\[\*\] has 2"):
        decided(asked(12, 4), capacity("local[*]"), Slots(registered=2), 0.0)
    for one in (asked(12), asked(12, 4)):
        with pytest.raises(InfrastructureError, match="no executor of spark://host:7077 registered within 60 s"):
            decided(one, capacity(CLUSTER), Slots(registered=0), WAIT_S)


def test_executors_that_are_added_for_waiting_tasks_need_not_be_there() -> None:
    grows = capacity(CLUSTER, spark_dynamicAllocation_enabled="true")
    assert not waits(asked(12, 4), grows, Slots(registered=0), 0.0, 0.0)
    assert decided(asked(12, 4), grows, Slots(registered=0), 0.0) == 4
    assert decided(asked(12), grows, Slots(registered=0), 0.0) == 1


@pytest.mark.parametrize(
    ("asked", "master", "slots", "said"),
    [
        (asked(2), "local[2]", Slots(registered=2), ""),
        (asked(2, beside=True), "local[4]", Slots(registered=4), ""),
        (asked(12, beside=True), "local[4]", Slots(registered=4), ""),
        (asked(12), "local[4]", Slots(registered=4), ""),
        (
            asked(12, 4, beside=True),
            "local[4]",
            Slots(registered=4),
            "visits takes all free slots of local[4] (4), so other Spark jobs of this session wait until it ends; "
            "containers=3 leaves one free",
        ),
        (
            asked(12, beside=True),
            "local[1]",
            Slots(registered=1),
            "visits takes all free slots of local[1] (1), so other Spark jobs of this session wait until it ends; "
            "start Spark with more slots",
        ),
        (
            asked(12),
            "local[2]",
            Slots(registered=2, taken=2),
            "visits waits for a slot: other jobs run in all 2 of local[2]. It starts when they end",
        ),
        (
            asked(12),
            CLUSTER,
            Slots(registered=1),
            "visits has 12 tasks in 1 container, because 1 of 1 slots of spark://host:7077 are free; with "
            "containers=12 a start waits for more",
        ),
    ],
)
def test_what_is_unexpected_is_said(asked: Asked, master: str, slots: Slots, said: str) -> None:
    found = capacity(master)
    assert note_on(asked, found, slots, decided(asked, found, slots, 5.0)) == said


def test_containers_without_a_slot() -> None:
    full = Slots(registered=2, taken=2)
    assert lacking({1, 2}, {0, 1}, full) == {2: "Spark has 2, and all are taken"}
    assert lacking({1}, {0, 1}, full) == {}, "Spark has given it a slot, and it is just starting"
    assert lacking({2}, {0, 1}, Slots(registered=3, taken=2)) == {}, "Spark is about to start it"
    assert lacking({0}, set(), Slots(registered=0)) == {0: "Spark has no executor"}
