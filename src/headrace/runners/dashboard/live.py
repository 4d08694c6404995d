"""The live page of one app: check the status repeatedly, keep the last hour, and feed the pages."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil

from typing_extensions import override

from headrace.core.clock import Clock, WallClock
from headrace.core.log import Throttle, logger
from headrace.plan.model import Plan
from headrace.plan.render import RenderedPlan, render
from headrace.runners.coordination.driver_status import PagesStatus
from headrace.runners.coordination.messages import AppStatus
from headrace.runners.coordination.repeated import RepeatedStep
from headrace.runners.coordination.watchers import Watched, Watcher
from headrace.runners.dashboard.desk import Desk
from headrace.runners.dashboard.feed import Feed
from headrace.runners.dashboard.history import History
from headrace.runners.dashboard.pages import Asset, Site, page_token, page_url
from headrace.runners.dashboard.patch import Document
from headrace.runners.dashboard.sampling import Between, Sample
from headrace.runners.dashboard.view import PlanFacts, point_of, view_of

EVERY_S = 1.0
TASKS_A_SECOND = 100
"""With more tasks, checks are rarer, because a page isn't worth one percent of a processor."""

RECENT = 4
"""Rates are those of so many looks: containers report twice a second, at other moments than these."""

_log = logger(__name__)


class LivePage:
    """The contents of an app's pages. Only one thread calls ``look``."""

    def __init__(self, plan: RenderedPlan, clock: Clock | None = None, *, peek: bool = False) -> None:
        """``peek``: the app allows to show messages."""
        self.desk = Desk(peek=peek)
        self._plan = plan
        self._facts = PlanFacts.of(plan)
        self._clock = clock or WallClock()
        self._history = History()
        self._throttle = Throttle(_log)
        self._lock = threading.Lock()
        """Guards the history, which threads of listeners read."""
        self._samples: deque[Sample] = deque(maxlen=RECENT)
        self.tasks = plan.tasks()
        self.feed = Feed(self._whole)

    def site(self, token: str) -> Site:
        """The page and its files; ``token`` opens it."""
        help_ = f"run: headrace dashboard {self._plan.app}"
        return Site(token, self._page, self.feed, help_, self.desk.answer)

    def look(self, status: AppStatus) -> None:
        """Take the present status."""
        now_ms = self._clock.now_ms()
        sample = Sample.of(status, self._clock.monotonic_ms(), self._samples[-1] if self._samples else None)
        self._samples.append(sample)
        before = self._samples[-2] if len(self._samples) > 1 else sample
        recent, last = Between(self._samples[0], sample), Between(before, sample)
        point = point_of(self._facts, status, recent, last, now_ms)
        with self._lock:
            self._history.add(point)
        self.feed.publish(lambda: view_of(self._facts, status, recent, now_ms), {"point": point})

    def end(self, status: AppStatus) -> None:
        """Show the last status, and end all events. Called when no other thread looks any more."""
        self.try_to_look(status)
        self.feed.close()

    def try_to_look(self, status: AppStatus) -> None:
        """Check the status; if that fails, only log, because a page must not end the app."""
        try:
            self.look(status)
        except Exception as error:  # noqa: BLE001 - whatever it is, the app goes on
            self._throttle.warning("the live page can't be updated", error=repr(error))

    def watched(self) -> PagesStatus:
        """The number of pages that watch the app."""
        seen = self.feed.seen
        return PagesStatus(watching=seen.listening, refused=seen.refused)

    def _whole(self, document: Document) -> Document:
        with self._lock:
            return {"view": document, "history": self._history.points()}

    def _page(self) -> Mapping[str, Asset]:
        from headrace.web.live_page import live_files  # which an app without viewers doesn't need

        return {name: Asset.of(name, text) for name, text in live_files(self._plan, peek=self.desk.peek).items()}


class Looking(RepeatedStep):
    """A thread that looks at the status every second, or more rarely if there are very many tasks."""

    def __init__(self, page: LivePage, status: Callable[[], AppStatus]) -> None:
        super().__init__("live-page", EVERY_S * max(1, ceil(page.tasks / TASKS_A_SECOND)))
        self._page = page
        self._status = status

    @override
    def step(self) -> bool:
        self._page.try_to_look(self._status())
        return True


class PageWatcher(Watcher):
    """The live page as the coordinator has it."""

    def __init__(self, plan: Plan, token: str) -> None:
        self._page = live_page(plan)
        self.pages = self._page.site(page_token(token))

    @override
    def watching(self) -> PagesStatus:
        return self._page.watched()

    @override
    def threads(self, run: Watched) -> Sequence[Looking]:
        self._page.desk.connect(run.ask, run.status)
        return [Looking(self._page, run.status)]

    @override
    def greeting(self, url: str, token: str) -> str:
        return f"live page: {page_url(url, token)}"

    @override
    def end(self, ending: AppStatus) -> None:
        self._page.end(ending)


def live_page(planned: Plan) -> LivePage:
    """The live page of a plan."""
    return LivePage(render(planned), peek=planned.graph.settings.peek)
