"""Calls of the app's own code that hold up a drain, or hang."""

from __future__ import annotations

from conversation import Process, new_ledger, notes, started, task

from headrace.coordinator import messages as m
from headrace.coordinator.progress import CallLimits

# -- a drain that a function holds up --------------------------------------------------------------------


def in_function(since_ms=500, still_ms=0):
    where = "the function of step 'cut' in task a/0"
    holdup = m.Holdup(what="user code", where=where, since_ms=since_ms, remedy="", by=["a/0"], still_ms=still_ms)
    return task("a/0", holdups=[holdup])


def test_a_drain_doesnt_wait_forever_for_a_function():
    ledger, zero, _ = started(lost_after_ms=10**9, calls=CallLimits(drain_timeout_ms=1000))
    ledger.heartbeat(zero.heartbeat(1, in_function()), 100)
    ledger.tick(50_000)
    assert ledger.state == "running", "only a drain is limited"
    ledger.drain()
    notes(ledger)
    for now_ms in (50_000, 50_500, 50_999):
        ledger.tick(now_ms)
        ledger.heartbeat(zero.heartbeat(now_ms, in_function(since_ms=501)), now_ms)
    assert notes(ledger) == [("warning", "the drain waits for the end of the function of step 'cut' in task a/0", 0)]
    assert ledger.state == "draining"
    ledger.tick(51_000)
    assert ledger.state == "failed"
    assert ledger.error.message == (
        "the drain didn't end within 1s: container 0 is still in the function of step 'cut' in task a/0; "
        "container 1 is running (tasks running: 1)"
    )


def test_calls_that_end_dont_prolong_a_drain():
    ledger, zero, _ = started(lost_after_ms=10**9, calls=CallLimits(drain_timeout_ms=5000))
    ledger.drain()
    for now_ms in range(0, 5001, 500):
        ledger.heartbeat(zero.heartbeat(now_ms + 1, in_function(since_ms=now_ms // 900 * 900)), now_ms)
        assert ledger.state == "draining"
        ledger.tick(now_ms)
    assert ledger.state == "failed"


def test_a_drain_that_is_given_up_names_what_each_container_does():
    ledger = new_ledger(calls=CallLimits(drain_timeout_ms=1000))
    ledger.register(Process(0, "u0").register(), 0)
    ledger.drain()
    ledger.tick(0)
    ledger.heartbeat(Process(0, "u0").heartbeat(1, task("a/0", "restoring")), 100)
    ledger.tick(1000)
    assert ledger.error.message == (
        "the drain didn't end within 1s: container 0 is running (tasks restoring: 1, tasks starting: 1); "
        "container 1 is waiting (tasks starting: 1)"
    )


def test_the_time_of_a_drain_begins_when_the_savepoint_is_taken():
    ledger, _, _ = started(lost_after_ms=10**9, saves=True, calls=CallLimits(drain_timeout_ms=1000))
    ledger.drain()
    ledger.tick(0)
    ledger.tick(5000)
    ledger.saving = False
    ledger.tick(5500)
    assert ledger.state == "draining"
    ledger.tick(6500)
    assert ledger.state == "failed"


# -- a function that hangs -------------------------------------------------------------------------------


def test_a_container_in_a_call_that_hangs_is_to_be_killed():
    ledger, zero, _ = started(lost_after_ms=10**9, calls=CallLimits(hung_after_ms=1000))
    for now_ms in (100, 600, 5000):
        ledger.heartbeat(zero.heartbeat(now_ms, in_function(still_ms=999)), now_ms)
        ledger.tick(now_ms)
    assert ledger.state_of(0) == "running", "it goes on to other messages"
    ledger.heartbeat(zero.heartbeat(5100, in_function(still_ms=1000)), 5100)
    ledger.tick(5100)
    ledger.heartbeat(zero.heartbeat(5200, in_function(still_ms=1100)), 5200)  # they come from another thread
    assert ledger.state_of(0) == "hung"
    error = ledger.status(1300).containers[0].error
    assert "has been in one call for more than 1s, so it was killed and starts again" in error.message
    assert "the function of step 'cut' in task a/0" in error.message
    assert ledger.state == "running"


def test_a_message_that_always_hangs_ends_the_app():
    ledger, process, _ = started(lost_after_ms=10**9, restarts_max=2, calls=CallLimits(hung_after_ms=1000))
    now_ms = 0
    for attempt in range(1, 4):
        ledger.heartbeat(process.heartbeat(now_ms + 1, in_function(since_ms=now_ms, still_ms=1000)), now_ms)
        now_ms += 2000
        ledger.tick(now_ms)
        assert ledger.state_of(0) == "hung"
        process = Process(0, f"u{attempt}", attempt)
        ledger.register(process.register(), now_ms)
    assert ledger.state == "failed"
    assert "so it was killed and starts again, 3 times in a row, without a commit in between" in ledger.error.message


def test_where_nobody_can_kill_it_the_app_ends():
    ledger, zero, _ = started(lost_after_ms=10**9, calls=CallLimits(hung_after_ms=1000, replaced=False))
    ledger.heartbeat(zero.heartbeat(1, in_function(still_ms=1000)), 0)
    ledger.tick(1000)
    assert ledger.state == "failed"
    assert "so the app ends" in ledger.error.message


def test_a_turn_outside_of_functions_hangs_too():
    ledger, zero, _ = started(lost_after_ms=10**9, calls=CallLimits(hung_after_ms=1000))
    holdup = m.Holdup(what="run loop", where="one turn", since_ms=0, remedy="", still_ms=1000)
    ledger.heartbeat(zero.heartbeat(1, task("a/0", "starting", holdups=[holdup])), 0)
    ledger.tick(0)
    assert ledger.state_of(0) == "hung"
    error = ledger.status(0).containers[0].error
    assert (error.type, error.fault) == ("InfrastructureError", "environment")
    assert "container 0 on box has been in one turn for more than 1s" in error.message


def test_nothing_hangs_without_a_limit():
    ledger, zero, _ = started(lost_after_ms=10**9, calls=CallLimits(hung_after_ms=None))
    ledger.heartbeat(zero.heartbeat(1, in_function(still_ms=10**9)), 0)
    ledger.tick(0)
    assert ledger.state_of(0) == "running"
