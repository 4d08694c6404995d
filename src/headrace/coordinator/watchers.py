"""What watches a run from beside it, by entry points: the live page, and OpenTelemetry.

A watcher may never hold the app up: what it does on the threads of others takes microseconds, the rest it does on its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

from headrace.coordinator.listener import Pages
from headrace.coordinator.messages import Answers, AppStatus, Ask, ExportStatus, Heartbeat, PagesStatus
from headrace.core.plug_ins import loaded, own_points
from headrace.core.worker import WorkerThread
from headrace.plan.model import Plan

GROUP = "headrace.watchers"
"""The group of entry points of functions that make a watcher of a plan and the run's token."""


class Hearer(Protocol):
    """Receives each heartbeat, and exports data from it."""

    @property
    def traced(self) -> bool:
        """Whether it wants commits to be in them."""

    def hear(self, heartbeat: Heartbeat) -> None:
        """Record a heartbeat without blocking. Safe from any thread."""

    def status(self) -> ExportStatus:
        """Return the numbers of transmissions."""


class WatchedRun(Protocol):
    """The run, as a watcher sees it."""

    def status(self) -> AppStatus:
        """Return the present status of everything."""

    def ask(self, message: Ask) -> Answers:
        """Ask tasks; block until all have answered, or for as long as the question allows."""


class Watcher:
    """Made with the run, asked for ``pages``, ``hearer`` and ``threads``, told the ``end``; by default does nothing."""

    pages: Pages | None = None
    hearer: Hearer | None = None

    def watching(self) -> PagesStatus:
        return PagesStatus()

    def threads(self, run: WatchedRun) -> Sequence[WorkerThread]:
        return ()

    def greeting(self, url: str, token: str) -> str:
        return ""

    def end(self, ending: AppStatus) -> None:
        """Take the last status, when all threads have ended."""


def watchers_of(plan: Plan, token: str) -> list[Watcher]:
    makers = [cast("Callable[[Plan, str], Watcher]", loaded(maker)) for _, maker in sorted(own_points(GROUP).items())]
    return [maker(plan, token) for maker in makers]


def pages_of(watchers: Iterable[Watcher]) -> Watcher:
    return next((one for one in watchers if one.pages is not None), Watcher())


def hearer_of(watchers: Iterable[Watcher]) -> Hearer | None:
    return next((one.hearer for one in watchers if one.hearer is not None), None)
