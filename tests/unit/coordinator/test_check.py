"""``headrace check``."""

from __future__ import annotations

import pytest
from conversation import Process, new_ledger, started, task

from headrace.coordinator.messages import CheckpointStatus, InputStatus
from headrace.core.errors import DeclarationError, UsageError
from headrace.operate.cli.main import main
from headrace.operate.diagnosis import Health, Limits, check

HOUR = 3_600_000


def verdict(ledger, limits, now_ms=HOUR):
    return check([ledger.status(0)], limits, now_ms)


def with_task(**rest):
    ledger, zero, _ = started()
    ledger.heartbeat(zero.heartbeat(1, task("a/0", **rest), task("b/0")), 1)
    return ledger


def test_an_app_that_runs_is_well():
    ledger, _, _ = started()
    assert verdict(ledger, Limits.of("1m", "30s", "3/10m")) == (Health.OK, "OK: app is well")


def test_an_app_that_starts_is_a_warning_and_one_that_failed_is_critical():
    ledger = new_ledger()
    assert verdict(ledger, Limits()) == (Health.WARNING, "WARNING: app is starting")
    ledger, zero, _ = started()
    ledger.failed(zero.failure(type="DataError", fault="data", retry=False), 0)
    assert verdict(ledger, Limits())[0] == Health.CRITICAL


@pytest.mark.parametrize(
    ("input_", "expected"),
    [
        (InputStatus(lag=5, watermark=HOUR - 61_000), Health.CRITICAL),
        (InputStatus(lag=5, watermark=HOUR - 60_000), Health.OK),
        (InputStatus(lag=0, watermark=0), Health.OK),
        (InputStatus(lag=5), Health.OK),
        (InputStatus(lag=None, watermark=0, ended=True), Health.OK),
    ],
)
def test_lag_counts_where_messages_are_unread(input_, expected):
    ledger = with_task(inputs={"log.x[0]": input_})
    assert verdict(ledger, Limits.of("1m", None, None))[0] == expected
    assert verdict(ledger, Limits())[0] == Health.OK


def test_a_container_without_a_slot_is_a_warning():
    ledger, _, _ = started()
    ledger.lack({1: "Spark has 1, and all are taken"})
    assert verdict(ledger, Limits()) == (
        Health.WARNING,
        "WARNING: app container 1 waits for a slot: Spark has 1, and all are taken",
    )


def test_an_old_commit_is_critical_and_so_is_none_at_all():
    old = with_task(checkpoint=CheckpointStatus(version=1, age_ms=48_000, duration_ms=1))
    limits = Limits.of(None, "30s", None)
    assert verdict(old, limits) == (Health.CRITICAL, "CRITICAL: app last commit above 30s: a/0 48s")
    assert verdict(with_task(uptime_ms=31_000), limits)[0] == Health.CRITICAL


def test_restarts_count_within_the_time():
    ledger, _, _ = started()
    for n in range(3):
        again = Process(0, f"again{n}", n + 1)
        ledger.register(again.register(), 1000 * n)
    ledger.heartbeat(again.heartbeat(0, task("a/0"), task("b/0")), 3000)
    status = ledger.status(3000)
    assert status.containers[0].restarted_ago_ms == [3000, 2000, 1000]
    assert check([status], Limits.of(None, None, "3/10m"), HOUR)[0] == Health.OK
    assert check([status], Limits.of(None, None, "2/2s"), HOUR)[0] == Health.OK
    found = check([status], Limits.of(None, None, "1/2s"), HOUR)
    assert found == (Health.CRITICAL, "CRITICAL: app 2 restarts in 2s, more than 1")


@pytest.mark.parametrize("restarts", ["3", "x/10m", "100/1m"])
def test_restarts_that_make_no_sense_are_refused(restarts):
    with pytest.raises(UsageError, match="max-restarts"):
        Limits.of(None, None, restarts)


def test_an_app_that_is_not_there_is_unknown(tmp_path, capsys):
    (tmp_path / "home").mkdir()
    assert main(["check", "nobody", "--home", str(tmp_path / "home")]) == 3
    out = capsys.readouterr().out
    assert out.startswith("UNKNOWN: nobody ") and out.count("\n") == 1


def test_what_the_command_cannot_read_comes_with_what_to_write(tmp_path, capsys):
    assert main(["check", "nobody", "--home", str(tmp_path), "--max-lag", "60"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("UNKNOWN: nobody --max-lag: '60' isn't a duration; write a number and a unit")
    assert out.count("\n") == 1


def test_a_time_without_a_unit_is_refused():
    with pytest.raises((UsageError, DeclarationError), match="max-lag"):
        Limits.of("60", None, None)
