"""What holds what: chains of waits, their culprits, and the sentences."""

from __future__ import annotations

from typing import get_args

import pytest

from headrace.coordinator import messages as m
from headrace.operate.diagnosis import Reason, reasons
from page_scene import NOW, container, holdup, status, task

READERS = {"log.b[0]": ["b/0"], "log.b[1]": ["b/1"]}


def told(given: m.AppStatus, busy: float = 0.0) -> list[Reason]:
    return reasons(given, READERS, lambda _: busy, NOW)


def test_an_app_that_gets_on_has_nothing_to_tell():
    assert told(status(task("a/0"), task("b/0"))) == []


def test_waiting_for_messages_is_no_trouble():
    assert told(status(task("a/0", holdups=[holdup("data", "log.a[0]")]))) == []


def test_a_chain_of_watermarks_ends_at_the_function_that_is_slow():
    slow = holdup("user code", "the function of step 'map-1' in task a/1, at pipeline.py:12", "a/1", ago_ms=14_000)
    given = status(
        task("a/1", holdups=[slow]),
        task("b/0", holdups=[holdup("watermark", "log.b[0]: the watermark of a/1 stands still", "a/1")]),
        task("c/0", holdups=[holdup("watermark", "log.c[0]: the watermark of b/0 stands still", "b/0")]),
        containers=[container(0, "a/1"), container(1, "b/0"), container(2, "c/0")],
    )
    (one,) = told(given)
    assert one.text == (
        "c/0 and 1 other wait for the watermark of b/0, which waits for the watermark of a/1: "
        "the function of step 'map-1' in task a/1, at pipeline.py:12 is running"
    )
    assert (one.remedy, one.since_ms, one.task, one.tasks) == ("do it", NOW - 14_000, "a/1", ("b/0", "c/0"))


def test_tasks_that_share_a_container_wait_for_one_run_loop():
    slow = holdup("user code", "the function of step 'map-1' in task a/1", "a/1")
    (one,) = told(status(task("a/1", holdups=[slow]), task("b/0", holdups=[slow]), task("b/1", holdups=[slow])))
    assert one.text.startswith("b/0 and 1 other wait for the run loop of a/1: the function of step 'map-1'")


def test_a_reader_that_is_busy_is_behind_back_pressure():
    ahead = holdup("readers", "log.b[1] is 90000000 bytes ahead of its reader")
    (one,) = told(status(task("a/0", holdups=[ahead], state="blocked"), task("b/1")), busy=0.97)
    assert one.text == "a/0 waits for its reader b/1: b/1 works as fast as it can (97% busy)"
    assert "more partitions" in one.remedy


def test_a_reader_of_another_deployment_is_named():
    ahead = holdup("readers", "log.x[0] is 90000000 bytes ahead of its reader", remedy="start the stage that reads it")
    (one,) = told(status(task("a/0", holdups=[ahead], state="blocked")))
    assert one.text == "log.x[0] is 90000000 bytes ahead of its reader, and no task of this deployment reads it"
    assert one.remedy == "start the stage that reads it"


def test_a_checkpoint_that_a_lost_container_holds_up():
    gone = m.ErrorReport(type="E", message="the process was killed\nmore", hint="give it memory")
    given = status(
        task("a/0"),
        task("b/0", holdups=[holdup("checkpoint", "log.b[0]", "a/0")]),
        containers=[container(0, "a/0", state="lost", last_seen_ms=9000, error=gone), container(1, "b/0")],
    )
    (one,) = told(given)
    assert one.text == "b/0 waits for the commit of a/0: container 0 on box is lost: the process was killed"
    assert (one.kind, one.remedy) == ("container", "give it memory")


def test_a_container_without_a_slot_is_a_culprit():
    gone = container(0, "a/0", state="lost", last_seen_ms=9000, lacks="Spark has 2, and all are taken")
    (one,) = told(status(task("a/0"), containers=[gone]))
    assert one.text == "container 0 waits for a slot: Spark has 2, and all are taken"
    assert (one.kind, one.since_ms) == ("slot", NOW - 9000)
    assert one.remedy.startswith("add a machine or cores")


def test_an_input_without_messages_holds_the_watermark():
    quiet = holdup("watermark", "log.quiet[0]: no message has arrived yet", remedy="give it an idle_timeout")
    (one,) = told(status(task("a/0", holdups=[quiet])))
    assert (one.text, one.remedy) == (
        "a/0 waits for log.quiet[0]: no message has arrived yet",
        "give it an idle_timeout",
    )


def test_late_messages_are_a_culprit_of_their_own():
    late = holdup("late", "log.in[0]: messages arrive, but none moves event time on", remedy="check their times")
    (one,) = told(status(task("a/0", holdups=[late])))
    assert one.text == "the event time of a/0 stands still: log.in[0]: messages arrive, but none moves event time on"
    assert (one.kind, one.remedy) == ("late", "check their times")


def test_a_circle_ends_where_it_closes():
    given = status(
        task("a/0", holdups=[holdup("checkpoint", "x", "b/0")]), task("b/0", holdups=[holdup("checkpoint", "y", "a/0")])
    )
    assert all(one.text for one in told(given))


@pytest.mark.parametrize(
    "what", ["user code", "run loop", "restore", "readers", "target", "calls", "checkpoint", "late"]
)
def test_every_kind_has_a_sentence_with_its_place(what):
    waits = task("b/0", holdups=[holdup("checkpoint", "log.b[0]", "a/0")])
    found = told(status(task("a/0", holdups=[holdup(what, "the place")]), waits))
    assert "the place" in found[0].text


def test_the_longest_one_comes_first():
    given = status(
        task("a/0", holdups=[holdup("target", "t1", ago_ms=6000)]),
        task("a/1", holdups=[holdup("target", "t2", ago_ms=9000)]),
    )
    assert ["t2" in one.text for one in told(given)] == [True, False]


def test_every_reason_why_a_task_waits_has_words() -> None:
    assert m.REASONS.keys() == set(get_args(m.What))
