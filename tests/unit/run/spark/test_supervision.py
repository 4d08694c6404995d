"""When a container without heartbeats is killed, and when the app is given up; time is a number."""

from __future__ import annotations

import pytest

from headrace.coordinator import messages as m
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.server import Coordinator
from headrace.core.errors import HeadraceError, InfrastructureError
from headrace.core.ids import TaskName
from headrace.life.metadata import MemoryMetadata
from headrace.run.spark.hosting import (
    ABSENT_MS,
    EXPLAINED_MAX,
    GRACE_MS,
    UNEXPLAINED_MAX,
    AttemptFailure,
    Supervisor,
    watch,
    why_hopeless,
)
from headrace.run.spark.slots import Slots

TRACEBACK = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'mine'"
CRASH = "Python worker exited unexpectedly (crashed): java.io.EOFException"


class RecordedJob:
    """What Spark would report, as a list, and the calls that it got."""

    def __init__(self) -> None:
        self.failed: list[AttemptFailure] = []
        self.killed: list[tuple[int, int]] = []
        self.asked = self.asked_for_slots = 0
        self.without_slot: set[int] = set()
        self.over = False
        self.error: HeadraceError | None = None

    def kill(self, container: int, attempt: int, why: str) -> bool:
        self.killed.append((container, attempt))
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Ends just when it is asked, like a job whose containers finish between two checks."""
        self.when_asked()
        return self.over

    def when_asked(self) -> None:
        """What happens meanwhile."""

    def failure_count(self) -> int:
        return len(self.failed)

    def failures(self) -> list[AttemptFailure]:
        self.asked += 1
        return self.failed

    def placed(self) -> set[int]:
        return {0} - self.without_slot

    def slots(self) -> Slots:
        self.asked_for_slots += 1
        return Slots(registered=1, taken=1)


def new_ledger() -> Ledger:
    return Ledger("app", {"a": [TaskName("a", 0)]}, 1, started_at=0, guarantee="exactly_once", lost_after_ms=5000)


def register(ledger: Ledger, attempt: int, now_ms: float) -> None:
    ledger.register(m.Register(container=0, attempt=attempt, host="box", pid=1, incarnation=f"u{attempt}"), now_ms)


def test_a_lost_container_is_killed_after_the_grace_and_once_per_grace() -> None:
    job, ledger = RecordedJob(), new_ledger()
    supervisor = Supervisor(job, lambda error: None)
    register(ledger, 2, 0)
    for now in range(0, 9000, 250):
        ledger.tick(now)
        supervisor.look(ledger.status(now), now)
        if now < 5000 + GRACE_MS:
            assert job.killed == []
    assert job.killed == [(0, 2)] * 3


def test_one_that_sends_heartbeats_again_within_the_grace_is_left_alone() -> None:
    job, ledger = RecordedJob(), new_ledger()
    supervisor = Supervisor(job, lambda error: None)
    register(ledger, 0, 0)
    for now in range(5000, 20_000, 250):
        ledger.tick(now)
        supervisor.look(ledger.status(now), now)
        ledger.heartbeat(m.Heartbeat(container=0, incarnation="u0", sent_ms=now), now)
    assert job.killed == []


def test_the_lack_of_a_slot_is_named_until_there_is_one() -> None:
    job, ledger = RecordedJob(), new_ledger()
    supervisor = Supervisor(job, lambda error: None, ledger.lack)
    job.without_slot = {0}

    def look(now_ms: float) -> str:
        ledger.tick(now_ms)
        supervisor.look(ledger.status(now_ms), now_ms)
        return ledger.status(now_ms).containers[0].lacks

    assert [look(now) for now in (0, ABSENT_MS - 1)] == ["", ""]
    assert job.asked_for_slots == 0
    for now in range(int(ABSENT_MS), 8000, 250):
        assert look(now) == "Spark has 1, and all are taken"
    assert job.asked_for_slots == 5, "Spark isn't asked every time"
    assert [n.what for n in ledger.take_notes()] == ["the container waits for a slot: Spark has 1, and all are taken"]
    register(ledger, 0, 8000)
    assert look(8000) == ""
    job.without_slot = set()
    assert [look(16_000), look(16_000 + ABSENT_MS)] == ["", ""], "it is lost, and Spark doesn't know yet"
    job.without_slot = {0}
    assert look(20_000) == "Spark has 1, and all are taken"


def test_attempts_that_end_before_they_register_end_the_app_with_their_reason() -> None:
    job, ledger = RecordedJob(), new_ledger()
    errors: list[Exception] = []
    supervisor = Supervisor(job, errors.append)
    for attempt in range(EXPLAINED_MAX):
        assert errors == []
        job.failed.append(AttemptFailure(0, attempt, TRACEBACK))
        supervisor.look(ledger.status(0), 0)
    (error,) = errors
    assert "container 0 failed 3 times in a row before it could register" in str(error)
    assert "No module named 'mine'" in str(error)
    assert "spark.submit.pyFiles" in str(error)


def test_spark_is_asked_for_reasons_only_when_there_is_a_new_failure() -> None:
    job, ledger = RecordedJob(), new_ledger()
    supervisor = Supervisor(job, lambda error: None)
    job.failed.append(AttemptFailure(0, 0, CRASH))
    for _ in range(5):
        supervisor.look(ledger.status(0), 0)
    assert job.asked == 1


def test_failures_of_attempts_that_registered_are_the_ledgers_to_judge() -> None:
    failures = [AttemptFailure(0, attempt, TRACEBACK) for attempt in range(50)]
    assert why_hopeless(failures, {0: 49}) is None
    assert why_hopeless(failures, {0: 46}) is not None


def test_losses_are_no_reason_until_there_are_very_many() -> None:
    killed = [AttemptFailure(0, attempt, CRASH) for attempt in range(UNEXPLAINED_MAX)]
    assert why_hopeless(killed[:-1], {0: -1}) is None
    error = why_hopeless(killed, {0: -1})
    assert error is not None
    assert "failed 30 times in a row" in str(error)


def test_containers_are_judged_one_by_one() -> None:
    failures = [AttemptFailure(container, 0, TRACEBACK) for container in range(EXPLAINED_MAX)]
    assert why_hopeless(failures, dict.fromkeys(range(EXPLAINED_MAX), -1)) is None


def test_an_app_that_finishes_while_spark_is_asked_has_finished() -> None:
    ledger = new_ledger()
    register(ledger, 0, 0)

    class Finishing(RecordedJob):
        def when_asked(self) -> None:
            ledger.finished(m.Finished(container=0, incarnation="u0", tasks=["a/0"]), 1)
            self.over = True

    with Coordinator(ledger, MemoryMetadata()) as coordinator:
        assert watch(coordinator, Finishing()).state == "finished"


def test_an_app_that_finishes_after_spark_was_asked_has_finished() -> None:
    ledger = new_ledger()
    register(ledger, 0, 0)

    class FinishingLater(RecordedJob):
        def failure_count(self) -> int:
            ledger.finished(m.Finished(container=0, incarnation="u0", tasks=["a/0"]), 1)
            self.over = True
            return 0

    with Coordinator(ledger, MemoryMetadata()) as coordinator:
        assert watch(coordinator, FinishingLater()).state == "finished"


def test_a_job_that_ends_without_the_app_is_an_error() -> None:
    job = RecordedJob()
    job.over = True
    with (
        Coordinator(new_ledger(), MemoryMetadata()) as coordinator,
        pytest.raises(InfrastructureError, match="Spark's job has ended, but the app hasn't"),
    ):
        watch(coordinator, job)
