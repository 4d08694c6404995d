"""When a container is killed for its silence, and when the app is given up; time is a number."""

from __future__ import annotations

from headrace.core.ids import TaskName
from headrace.runners.coordination import messages as m
from headrace.runners.coordination.ledger import Ledger
from headrace.runners.spark.hosting import AttemptFailure
from headrace.runners.spark.supervision import EXPLAINED_MAX, LOST_GRACE_MS, UNEXPLAINED_MAX, Supervisor, why_hopeless

TRACEBACK = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'mine'"
CRASH = "Python worker exited unexpectedly (crashed): java.io.EOFException"


class RecordedJob:
    """What Spark would know, as a list, and what it was told."""

    def __init__(self) -> None:
        self.failed: list[AttemptFailure] = []
        self.killed: list[tuple[int, int]] = []
        self.asked = 0

    def kill(self, container: int, attempt: int, why: str) -> bool:
        self.killed.append((container, attempt))
        return True

    def failure_count(self) -> int:
        return len(self.failed)

    def failures(self) -> list[AttemptFailure]:
        self.asked += 1
        return self.failed


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
        if now < 5000 + LOST_GRACE_MS:
            assert job.killed == []
    assert job.killed == [(0, 2)] * 3


def test_one_that_speaks_again_within_the_grace_is_left_alone() -> None:
    job, ledger = RecordedJob(), new_ledger()
    supervisor = Supervisor(job, lambda error: None)
    register(ledger, 0, 0)
    for now in range(5000, 20_000, 250):
        ledger.tick(now)
        supervisor.look(ledger.status(now), now)
        ledger.heartbeat(m.Heartbeat(container=0, incarnation="u0", sent_ms=now), now)
    assert job.killed == []


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
