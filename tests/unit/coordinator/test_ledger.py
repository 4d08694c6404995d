"""The states of containers and of the app, event by event; time is a number."""

from __future__ import annotations

import msgspec
import pytest
from conversation import Process, new_ledger, notes, started, task

from headrace.api.specs import RESTARTS_MAX
from headrace.coordinator import messages as m
from headrace.coordinator.ledger import STEADY_MS, Ledger
from headrace.coordinator.messages import LastWords
from headrace.core.errors import FencedError, ProtocolError, UsageError
from headrace.core.ids import TaskName

A0, A1, B0 = TaskName("a", 0), TaskName("a", 1), TaskName("b", 0)


def container(ledger, number, now_ms=0.0):
    return ledger.status(now_ms).containers[number]


# -- registering ---------------------------------------------------------------------------------------


def test_a_container_gets_its_tasks():
    ledger = new_ledger()
    assert ledger.assignments == ((A0, B0), (A1,))
    seat = ledger.register(Process(0, "u").register(), 0)
    assert (seat.tasks, dict(seat.grants), seat.superseded) == ((A0, B0), {}, None)
    assert (container(ledger, 0).state, container(ledger, 1).state) == ("running", "waiting")


def test_a_repeated_registration_gets_the_same_grants():
    ledger = new_ledger()
    message = Process(0, "u").register()
    ledger.register(message, 0)
    ledger.granted(message, {A0: 5, B0: 6})
    seat = ledger.register(message, 1)
    assert seat.grants == {A0: 5, B0: 6}
    assert [status.generation for status in ledger.status(1).tasks] == [5, 0, 6]


def test_the_next_incarnation_supersedes_and_starts_from_nothing():
    ledger, zero, _ = started()
    ledger.granted(zero.register(), {A0: 1, B0: 1})
    seat = ledger.register(Process(0, "u0b", attempt=1).register(), 10)
    assert (seat.tasks, dict(seat.grants), seat.superseded) == ((A0, B0), {}, "u0")
    assert [s.state for s in ledger.status(10).tasks] == ["starting", "running", "starting"]
    assert (container(ledger, 0).pid, container(ledger, 0).attempt) == (101, 1)


@pytest.mark.parametrize(
    "say",
    [
        lambda ledger, zombie: ledger.heartbeat(zombie.heartbeat(99, task("a/0")), 20),
        lambda ledger, zombie: ledger.check_request(zombie.ask("a/0"), 20),
        lambda ledger, zombie: ledger.finished(zombie.finished("a/0", "b/0"), 20),
        lambda ledger, zombie: ledger.failed(zombie.failure(fault="user", retry=False), 20),
        lambda ledger, zombie: ledger.register(Process(0, "u0c", attempt=0).register(), 20),
    ],
    ids=["heartbeat", "generation", "finished", "failure", "late registration"],
)
def test_the_superseded_are_refused_and_change_nothing(say):
    ledger, zero, _ = started()
    ledger.register(Process(0, "u0b", attempt=1).register(), 10)
    before = ledger.status(10)
    with pytest.raises(FencedError, match=r"container 0 of app 'app' is not the current one: attempt 1 \(pid 101"):
        say(ledger, zero)
    assert ledger.status(10) == before


def test_who_never_registered_is_refused():
    with pytest.raises(FencedError, match="it never registered with this run"):
        new_ledger().heartbeat(Process(0, "u").heartbeat(0), 0)


def test_a_lower_attempt_may_register_when_no_incarnation_is_alive():
    # Spark counts attempts from 0 again when it runs a stage again.
    ledger, *_ = started()
    ledger.register(Process(0, "u0b", attempt=1).register(), 10)
    ledger.failed(Process(0, "u0b", attempt=1).failure(), 11)
    assert ledger.register(Process(0, "u0c", attempt=0).register(), 12).superseded == "u0b"


@pytest.mark.parametrize("number", [-1, 2])
def test_an_unknown_container_is_an_error(number):
    with pytest.raises(ProtocolError, match=f"has 2 containers, but no {number}"):
        new_ledger().register(Process(number, "u").register(), 0)


@pytest.mark.parametrize("name", ["a/1", "a/9", "nonsense"])
def test_a_task_of_somebody_else_is_an_error(name):
    ledger, zero, _ = started()
    for say in (
        lambda: ledger.heartbeat(zero.heartbeat(1, task(name)), 1),
        lambda: ledger.finished(zero.finished(name), 1),
        lambda: ledger.check_request(zero.ask(name), 1),
    ):
        with pytest.raises(ProtocolError, match=f"that it doesn't have: {name}; it has a/0, b/0"):
            say()


def test_an_app_without_tasks_is_refused():
    with pytest.raises(UsageError, match="no tasks to run"):
        Ledger("app", {"a": []}, 1, started_at=0, guarantee="exactly-once")


# -- generations ---------------------------------------------------------------------------------------


def test_the_current_incarnation_may_ask_for_a_generation():
    ledger, zero, _ = started()
    assert ledger.check_request(zero.ask("b/0"), 5) == B0
    ledger.granted(zero.ask("b/0"), {B0: 7})
    assert ledger.status(5).tasks[2].generation == 7
    assert ledger.register(zero.register(), 6).grants == {B0: 7}


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda ledger, zero: ledger.failed(zero.failure(), 1), "the container is failed"),
        (lambda ledger, zero: ledger.finished(zero.finished("a/0"), 1), "open tasks: b/0"),
        (lambda ledger, zero: ledger.fail(m.ErrorReport(type="E", message="x")), "the app is failed"),
    ],
    ids=["failed", "task finished", "app failed"],
)
def test_no_generation_for_what_is_over(end, state):
    ledger, zero, _ = started()
    end(ledger, zero)
    with pytest.raises(FencedError, match=state):
        ledger.check_request(zero.ask("a/0"), 2)


# -- the app's state ------------------------------------------------------------------------------------


def test_the_app_is_starting_until_every_task_runs():
    ledger = new_ledger()
    zero, one = Process(0, "u0"), Process(1, "u1")
    states = [ledger.state]
    ledger.register(zero.register(), 0)
    ledger.register(one.register(), 0)
    ledger.heartbeat(zero.heartbeat(0, task("a/0"), task("b/0", "restoring")), 0)
    ledger.heartbeat(one.heartbeat(0, task("a/1", "blocked")), 0)
    states.append(ledger.state)
    ledger.heartbeat(zero.heartbeat(1, task("a/0"), task("b/0")), 1)
    states.append(ledger.state)
    ledger.register(Process(0, "u0b", attempt=1).register(), 2)
    states.append(ledger.state)
    assert states == ["starting", "starting", "running", "running"]


def test_the_app_is_finished_when_all_tasks_are():
    ledger, zero, one = started()
    assert ledger.finished(zero.finished("a/0"), 1) == m.Orders()
    assert container(ledger, 0).state == "running"
    ledger.finished(one.finished("a/1"), 1)
    assert (container(ledger, 1).state, ledger.state) == ("finished", "running")
    assert ledger.finished(zero.finished("b/0"), 2) == m.Orders(stop=True)
    assert ledger.state == "finished"
    assert ledger.finished(zero.finished("b/0"), 3) == m.Orders(stop=True), "a repetition is harmless"


def test_a_late_heartbeat_doesnt_bring_a_finished_task_back():
    ledger, zero, _ = started()
    ledger.finished(zero.finished("a/0"), 1)
    ledger.heartbeat(zero.heartbeat(5, task("a/0"), task("b/0")), 5)
    assert [s.state for s in ledger.status(5).tasks] == ["finished", "running", "running"]


def test_a_restarted_container_doesnt_run_finished_tasks_again():
    ledger, zero, one = started()
    ledger.finished(zero.finished("a/0"), 1)
    assert ledger.register(Process(0, "u0b", attempt=1).register(), 2).tasks == (B0,)
    ledger.finished(one.finished("a/1"), 3)
    assert ledger.register(Process(1, "u1b", attempt=1).register(), 4).tasks == ()
    assert container(ledger, 1).state == "finished"


def test_draining_is_ordered_in_every_answer():
    ledger, zero, _ = started()
    assert not ledger.status(0).drained
    ledger.drain()
    assert ledger.state == "draining"
    assert ledger.status(0).drained
    assert ledger.heartbeat(zero.heartbeat(1), 1) == m.Orders(drain=True)
    assert ledger.orders == m.Orders(drain=True)
    assert ledger.register(Process(1, "u1b", attempt=1).register(), 2).tasks == (A1,), "it must drain too"
    ledger.finished(zero.finished("a/0", "b/0"), 3)
    ledger.finished(Process(1, "u1b").finished("a/1"), 3)
    assert ledger.state == "finished"


def test_a_container_whose_task_asks_for_the_end_has_everybody_drained():
    ledger, zero, one = started()
    ledger.heartbeat(msgspec.structs.replace(zero.heartbeat(1), wants_shutdown=True), 1)
    assert ledger.state == "draining"
    assert ledger.heartbeat(one.heartbeat(1), 1) == m.Orders(drain=True)
    asked_again = msgspec.structs.replace(zero.heartbeat(2), wants_shutdown=True)
    assert ledger.heartbeat(asked_again, 2) == m.Orders(drain=True), "it is asked for in every heartbeat from then on"


# -- failing and getting lost --------------------------------------------------------------------------


def test_a_failure_that_a_restart_may_heal_is_the_containers_alone():
    ledger, zero, one = started()
    assert ledger.failed(zero.failure(message="disk"), 1) == m.Orders(stop=True)
    assert ledger.failed(zero.failure(message="disk"), 1) == m.Orders(stop=True), "a repetition is harmless"
    assert (container(ledger, 0).state, container(ledger, 0).error.message) == ("failed", "disk")
    assert ledger.heartbeat(zero.heartbeat(2), 2) == m.Orders(stop=True)
    assert ledger.heartbeat(one.heartbeat(2), 2) == m.Orders()
    assert ledger.state == "running"
    assert ledger.register(Process(0, "u0b", attempt=1).register(), 3).tasks == (A0, B0)
    assert (container(ledger, 0).state, container(ledger, 0).error.message) == ("running", "disk")
    ledger.heartbeat(Process(0, "u0b").heartbeat(4, committed("a/0")), 4)
    assert container(ledger, 0).error is None, "it commits again"


@pytest.mark.parametrize("fault", ["user", "data"])
def test_a_failure_that_would_repeat_fails_the_app(fault):
    ledger, zero, one = started()
    ledger.failed(zero.failure(message="first", fault=fault, retry=False), 1)
    ledger.failed(one.failure(message="second", fault=fault, retry=False), 2)
    assert (ledger.state, ledger.error.message) == ("failed", "first")
    assert ledger.orders == m.Orders(stop=True)
    # Spark tries again; the next attempt ends at once, and the driver reports the error above.
    assert ledger.register(Process(0, "u0b", attempt=1).register(), 3).tasks == ()
    assert container(ledger, 0).error.message == "first"


def fail_repeatedly(times, apart_ms, **error):
    """Container 0 registers and fails this often. Returns the ledger, and the pauses that it was given."""
    ledger = new_ledger()
    pauses = []
    for n in range(times):
        process = Process(0, f"u{n}", attempt=n)
        ledger.register(process.register(), n * apart_ms)
        pauses.append(ledger.failed(process.failure(message="odd", **error), (n + 1) * apart_ms - 1).pause_ms)
    return ledger, pauses


def test_failures_in_a_row_fail_the_app_and_are_pauses_apart():
    ledger, pauses = fail_repeatedly(RESTARTS_MAX + 1, 100)
    assert ledger.state == "failed"
    assert ledger.error.message == "container 0 failed 6 times in a row, the last time with: odd"
    assert pauses == [0, 500, 1000, 2000, 4000, 0]
    assert fail_repeatedly(RESTARTS_MAX, 100)[0].state == "starting"


def test_a_failure_after_a_long_life_begins_a_new_row():
    ledger, pauses = fail_repeatedly(3 * RESTARTS_MAX, STEADY_MS + 1)
    assert (ledger.state, set(pauses)) == ("starting", {0})


def test_passing_trouble_around_the_app_is_waited_out():
    ledger, pauses = fail_repeatedly(50, 100, fault="environment", retry=True)
    assert (ledger.state, pauses[-1]) == ("starting", 5000)
    assert fail_repeatedly(50, 100, fault="environment", retry=False)[0].state == "failed"


def test_a_repeated_report_is_one_failure():
    ledger, zero, _ = started()
    for _ in range(2 * RESTARTS_MAX):
        ledger.failed(zero.failure(), 1)
    assert ledger.state == "running"


def test_a_finished_app_doesnt_fail_any_more():
    ledger, zero, one = started()
    ledger.finished(zero.finished("a/0", "b/0"), 1)
    ledger.finished(one.finished("a/1"), 1)
    ledger.fail(m.ErrorReport(type="E", message="late"))
    assert (ledger.state, ledger.error) == ("finished", None)


def test_a_container_without_heartbeats_is_lost_and_may_come_back():
    ledger, zero, one = started(lost_after_ms=1000)
    ledger.tick(0)
    ledger.heartbeat(one.heartbeat(1, task("a/1")), 400)
    ledger.tick(999)
    assert container(ledger, 0).state == "running"
    ledger.tick(1000)
    assert (container(ledger, 0).state, container(ledger, 1).state) == ("lost", "running")
    assert ledger.heartbeat(zero.heartbeat(2), 1300) == m.Orders()
    assert container(ledger, 0, 1350).state == "running"
    assert container(ledger, 0, 1350).last_seen_ms == 50


def test_a_lost_container_is_superseded_by_its_next_incarnation():
    ledger, zero, _ = started(lost_after_ms=1000)
    ledger.tick(5000)
    assert ledger.register(Process(0, "u0b", attempt=1).register(), 5001).superseded == "u0"
    with pytest.raises(FencedError):
        ledger.heartbeat(zero.heartbeat(3), 5002)


# -- dying without a word ------------------------------------------------------------------------------

AT_A0 = LastWords(task="a/0", step="cut", place="log.in[0], offset 7", how="called os._exit(3)", by_itself=True)


def committed(name):
    return task(name, checkpoint=m.CheckpointStatus(version=1, age_ms=0, duration_ms=1.0))


def die_repeatedly(times, words=None, *commits, **options):
    """Container 0 registers this often, each time because the one before died. Returns the ledger, and its pauses."""
    ledger = new_ledger(**options)
    pauses = []
    for n in range(times + 1):
        process = Process(0, f"u{n}", attempt=n)
        left = {} if words is None else {f"u{n - 1}": words, "stranger": LastWords(how="is about another")}
        pauses.append(ledger.register(process.register(left), n).pause_ms)
        if ledger.state != "failed":
            ledger.heartbeat(process.heartbeat(n, task("a/0"), *commits), n)
    return ledger, pauses


def test_deaths_in_a_row_fail_the_app_and_are_pauses_apart():
    ledger, pauses = die_repeatedly(RESTARTS_MAX)
    assert (ledger.state, pauses) == ("starting", [0, 0, 500, 1000, 2000, 4000])
    ledger, pauses = die_repeatedly(RESTARTS_MAX + 1)
    assert (ledger.state, pauses[-1]) == ("failed", 0)
    assert ledger.error.message == (
        "container 0 on box was killed from outside, or native code ended it, 6 times in a row, without a commit in"
        " between"
    )
    assert ledger.register(Process(0, "u9", attempt=9).register(), 99).tasks == ()


def test_the_limit_is_a_setting():
    assert die_repeatedly(1, restarts_max=0)[0].state == "failed"
    assert die_repeatedly(9, restarts_max=9)[0].state == "starting"


def test_pauses_are_spread_by_chance():
    assert die_repeatedly(3, None, chance=lambda: 0.0)[1] == [0, 0, 250, 500]


def test_a_commit_begins_a_new_row():
    ledger, pauses = die_repeatedly(50, None, committed("b/0"))
    assert (ledger.state, set(pauses)) == ("starting", {0})


def test_the_commit_of_another_task_is_no_progress_if_the_culprit_is_known():
    ledger, _ = die_repeatedly(RESTARTS_MAX + 1, AT_A0, committed("b/0"))
    assert ledger.state == "failed"
    assert ledger.error.message == (
        "container 0 on box called os._exit(3), 6 times in a row, without a commit in between\n"
        "  in the function of step 'cut', task a/0, on log.in[0], offset 7"
    )
    assert (ledger.error.fault, ledger.error.type) == ("user", "UserFunctionError")
    assert die_repeatedly(50, AT_A0, committed("a/0"))[0].state == "starting"


def test_a_task_that_has_ended_is_progress():
    ledger = new_ledger()
    for n in range(20):
        process = Process(0, f"u{n}", attempt=n)
        ledger.register(process.register(), n)
        ledger.finished(process.finished("b/0"), n)
    assert ledger.state == "starting"


def test_deaths_and_failures_make_one_row():
    ledger = new_ledger(restarts_max=2)
    for n in range(3):
        process = Process(0, f"u{n}", attempt=n)
        ledger.register(process.register(), n)
        if n == 1:
            ledger.failed(process.failure(), n)
    assert (ledger.state, container(ledger, 0).failures) == ("starting", 2)
    ledger.register(Process(0, "u3", attempt=3).register(), 3)
    assert ledger.state == "failed"


def test_what_a_container_died_of_shows_until_it_commits():
    ledger, _ = die_repeatedly(2, AT_A0)
    shown = container(ledger, 0)
    assert (shown.state, shown.failures, "os._exit(3)" in shown.error.message) == ("running", 2, True)
    assert notes(ledger)[-2:][0][1].startswith("the container died: container 0 on box called os._exit(3)")
    ledger.heartbeat(Process(0, "u2").heartbeat(9, committed("a/0")), 9)
    assert container(ledger, 0).error is None


def test_a_frozen_container_that_was_killed_is_said_to_be_that():
    ledger, *_ = started(lost_after_ms=1000)
    ledger.tick(5000)
    ledger.register(Process(0, "u0b", attempt=1).register(), 5001)
    assert container(ledger, 0).error.message == "container 0 on box sent no heartbeats and was killed"


# -- what is logged ------------------------------------------------------------------------------------


def test_what_happens_to_containers_is_noted_once_with_a_level():
    ledger, zero, _ = started()
    assert notes(ledger) == [("info", "the container has started", 0), ("info", "the container has started", 1)]
    assert notes(ledger) == []
    ledger.heartbeat(zero.heartbeat(5000, task("a/0"), task("b/0")), 5000)
    ledger.tick(5000)
    ledger.tick(5001)
    assert notes(ledger) == [("warning", "the container sends no heartbeats", 1)]
    ledger.register(Process(1, "u1b", attempt=1).register(), 5010)
    assert notes(ledger) == [
        ("warning", "the container died: container 1 on box sent no heartbeats and was killed", 1),
        ("warning", "attempt 1 has replaced attempt 0", 1),
    ]
    ledger.failed(zero.failure(), 5020)
    assert notes(ledger) == [("warning", "the container failed, and starts again: E: broke", 0)]


def test_an_error_that_ends_the_app_is_no_warning_as_the_driver_raises_it():
    ledger, zero, _ = started()
    notes(ledger)
    ledger.drain()
    ledger.drain()
    ledger.failed(zero.failure(retry=False, fault="user"), 10)
    assert notes(ledger) == [
        ("info", "the app drains", None),
        ("info", "the container failed, and the app ends: E: broke", 0),
    ]


def test_a_container_that_was_only_slow_is_noted_too():
    ledger, _, one = started()
    ledger.tick(5000)
    notes(ledger)
    ledger.heartbeat(one.heartbeat(5001, task("a/1")), 5001)
    assert notes(ledger) == [("info", "the container sends heartbeats again", 1)]
