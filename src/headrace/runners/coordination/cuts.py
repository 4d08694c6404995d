"""The cut that the coordinator has ordered, and its progress in each task. Pure.

A savepoint needs a version that every task of the app commits exactly, and the state of each task at that version
(``checkpoint.protocol``). The savepoint's creator chooses the version and a folder, and orders the same cut from every
deployment of the app. Containers receive the order in answers to their heartbeats, and report their progress in
heartbeats.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from headrace.checkpoint.founding import Cut
from headrace.core.ids import TaskName
from headrace.runners.coordination.messages import Message, TaskStatus

CutState = Literal["waiting", "kept", "missed", "over", "apart"]
"""*Over*: the task and its container have ended, and its state stays on its disk unchanged.

*Apart*: the task's machine or container doesn't see the folder of the cut.
"""

SPARE_HEARTBEATS = 4
SPARE_INTERVALS = 2


class CutOrder(Message, frozen=True, kw_only=True):
    """A cut to take part in; None cancels it. With ``ask``, the order changes nothing and only asks for the answer."""

    cut: Cut | None = None
    ask: bool = False


class CutReport(Message, frozen=True, kw_only=True, rename="camel"):
    """The progress of the present cut in each task of this deployment, and the data for choosing one.

    ``now_ms`` is the coordinator's clock, and ``margin_ms`` how far ahead of it a cut must be, so that every task
    learns of it in time. ``interval_ms`` is the checkpoint interval. ``scattered``: the app's machines share no disk.
    """

    id: str | None = None
    states: Mapping[str, CutState] = {}
    guarantee: str
    now_ms: int
    interval_ms: int
    margin_ms: int
    scattered: bool = False


class CutBook:
    """The present cut of one deployment."""

    def __init__(self, guarantee: str, interval_ms: int, heartbeat_ms: int, *, scattered: bool = False) -> None:
        self.cut: Cut | None = None
        self._guarantee = guarantee
        self._scattered = scattered
        self._interval_ms = interval_ms
        self._margin_ms = SPARE_HEARTBEATS * heartbeat_ms + SPARE_INTERVALS * interval_ms

    def order(
        self, message: CutOrder, statuses: Mapping[TaskName, TaskStatus], gone: Collection[TaskName], now_ms: int
    ) -> CutReport:
        """Take an order; return the progress of the present cut.

        ``gone`` are the tasks that have ended with their containers.
        """
        if not message.ask:
            self.cut = message.cut
        states = {} if self.cut is None else {str(t): self._state(t, s, gone) for t, s in statuses.items()}
        return CutReport(
            id=None if self.cut is None else self.cut.id,
            states=states,
            guarantee=self._guarantee,
            now_ms=now_ms,
            interval_ms=self._interval_ms,
            margin_ms=self._margin_ms,
            scattered=self._scattered,
        )

    def _state(self, task: TaskName, status: TaskStatus, gone: Collection[TaskName]) -> CutState:
        known = status.cut is not None and self.cut is not None and status.cut.id == self.cut.id
        state: CutState = status.cut.state if status.cut is not None and known else "waiting"
        # The last heartbeat of a container may be older than the end of its tasks.
        return "over" if state == "waiting" and task in gone else state


def choose(reports: Collection[CutReport]) -> int:
    """Choose the version for a cut of all these deployments: a multiple of their intervals, not too soon for any."""
    interval = max(report.interval_ms for report in reports)
    soonest = max(report.now_ms + report.margin_ms for report in reports)
    return (soonest // interval + 1) * interval
