"""The states of containers: what a ledger makes of them is in the table of transitions, whatever it hears and when."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import get_args

import pytest
from conversation import Process, new_ledger, task
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator import messages as m
from headrace.coordinator.ledger import TRANSITIONS, ContainerRecord, Ledger
from headrace.coordinator.progress import CallLimits
from headrace.core.errors import FencedError, ProtocolError

STATES = get_args(m.ContainerState)
HANGS = m.Holdup(what="user code", where="f", since_ms=0, remedy="", still_ms=10_000)
EVENTS = [
    "register",
    "replace",
    "replace an old one",
    "heartbeat",
    "heartbeat in a call that hangs",
    "finish one",
    "finish all",
    "fail",
    "fail for good",
    "time passes",
    "time passes by",
    "drain",
    "stop",
    "restart",
]


class Story:
    """A ledger, the processes of its container 0, and the states that this has had."""

    def __init__(self, restarts_max: int, *, replaced: bool) -> None:
        calls = CallLimits(hung_after_ms=1000, replaced=replaced)
        self.ledger: Ledger = new_ledger(restarts_max=restarts_max, calls=calls)
        self.now_ms = 0.0
        self.process = Process(0, "u0")
        self.attempts = 0
        self.states: list[m.ContainerState] = ["waiting"]

    def happens(self, event: str) -> None:
        self.now_ms += 10
        with suppress(FencedError):
            self._happens(event)
        self.ledger.tick(self.now_ms)
        self._see()

    def _happens(self, event: str) -> None:
        ledger, process, now_ms = self.ledger, self.process, self.now_ms
        match event:
            case "register":
                ledger.register(process.register(), now_ms)
            case "replace":
                self.attempts += 1
                self.process = Process(0, f"u{self.attempts}", self.attempts)
                ledger.register(self.process.register(), now_ms)
            case "replace an old one":
                ledger.register(Process(0, "old", -1).register(), now_ms)
            case "heartbeat":
                ledger.heartbeat(process.heartbeat(now_ms, task("a/0"), task("b/0")), now_ms)
            case "heartbeat in a call that hangs":
                statuses = (task("a/0", holdups=[HANGS]), task("b/0"))
                ledger.heartbeat(process.heartbeat(now_ms, *statuses), now_ms)
            case "finish one":
                ledger.finished(process.finished("a/0"), now_ms)
            case "finish all":
                ledger.finished(process.finished("a/0", "b/0"), now_ms)
            case "fail":
                ledger.failed(process.failure(fault="environment"), now_ms)
            case "fail for good":
                ledger.failed(process.failure(fault="user", retry=False), now_ms)
            case "time passes":
                self.now_ms += 6000
            case "time passes by":
                self.now_ms += 100_000
            case "drain":
                ledger.drain()
            case "stop":
                ledger.stop()
            case "restart":
                ledger.restart(tuple(ledger.assignments[0]))

    def _see(self) -> None:
        state = self.ledger.state_of(0)
        if state != self.states[-1]:
            self.states.append(state)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(EVENTS), max_size=30), st.integers(0, 3), st.booleans())
def test_no_order_of_events_leads_out_of_the_table(events: list[str], restarts_max: int, replaced: bool) -> None:
    story = Story(restarts_max, replaced=replaced)
    for event in events:
        story.happens(event)  # a change that the table doesn't have would raise ProtocolError
    for before, after in pairwise(story.states):
        # At most two changes come of one event: a process that is replaced has failed before the next one runs.
        assert after in TRANSITIONS[before] or any(after in TRANSITIONS[one] for one in TRANSITIONS[before])


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("after", STATES)
def test_a_change_that_the_table_does_not_have_raises(before: m.ContainerState, after: m.ContainerState) -> None:
    record = ContainerRecord(0, (), before)
    if after in TRANSITIONS[before]:
        record.become(after)
        assert record.state == after
    else:
        with pytest.raises(ProtocolError, match=f"container 0 is {before}, so it can't become {after}"):
            record.become(after)
        assert record.state == before


@pytest.mark.parametrize(
    ("events", "states"),
    [
        (["register", "finish all", "replace"], ["waiting", "running", "finished"]),
        (["register", "finish all", "fail"], ["waiting", "running", "finished", "failed"]),
        (["register", "finish all", "fail", "replace"], ["waiting", "running", "finished", "failed", "finished"]),
        (["register", "time passes", "heartbeat"], ["waiting", "running", "lost", "running"]),
        (["register", "time passes", "fail", "fail"], ["waiting", "running", "lost", "failed"]),
        (["register", "heartbeat in a call that hangs", "finish all"], ["waiting", "running", "hung", "finished"]),
        (["register", "heartbeat in a call that hangs", "fail"], ["waiting", "running", "hung", "failed"]),
        (["register", "fail", "replace"], ["waiting", "running", "failed", "running"]),
        (["stop", "register", "fail"], ["waiting", "failed"]),
    ],
)
def test_each_row_of_the_table_is_needed(events: list[str], states: list[m.ContainerState]) -> None:
    story = Story(9, replaced=True)
    for event in events:
        story.happens(event)
    assert story.states == states
