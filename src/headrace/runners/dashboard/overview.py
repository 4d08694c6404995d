"""All apps of a home on one page: the status of each, with links to their own pages. It changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from headrace.core.clock import Clock, WallClock
from headrace.core.errors import HeadraceError
from headrace.core.log import Throttle, logger
from headrace.metadata.startpoints import StartpointState
from headrace.runners.coordination.messages import AppStatus
from headrace.runners.coordination.repeated import RepeatedStep
from headrace.runners.dashboard.feed import Feed
from headrace.runners.dashboard.pages import Asset, Site
from headrace.runners.dashboard.patch import Document
from headrace.runners.dashboard.reasons import held_back

EVERY_S = 2.0

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Deployed:
    """The status of a deployment, the address of its page if it runs, and its app's open startpoints."""

    status: AppStatus
    url: str | None = None
    startpoints: tuple[StartpointState, ...] = ()


def overview_of(place: str, found: Sequence[Deployed], now_ms: int) -> Document:
    """What the page shows. Pure."""
    return {"place": place, "now": now_ms, "apps": [_app(one) for one in found]}


def _app(one: Deployed) -> Document:
    status = one.status
    open_ = [stage for stage in status.stages if stage.finished < stage.tasks]
    marks = [stage.watermark for stage in open_ if stage.watermark is not None and stage.idle < stage.tasks]
    shown = {
        "name": status.app,
        "state": status.state,
        "url": one.url,
        "started": status.started_at,
        "ended": status.ended_at,
        "stages": ", ".join(stage.name for stage in status.stages),
        "rate": round(sum(stage.rows_per_second for stage in status.stages), 1),
        "lag": sum(stage.lag or 0 for stage in status.stages),
        "watermark": min(marks, default=None),
        "tasks": len(status.tasks),
        "containers": len(status.containers),
        "held": any(held_back(task) for task in status.tasks if task.state != "finished") or None,
        "trouble": None if status.error is None else status.error.message,
        "hint": None if status.error is None else status.error.hint,
        "startpoints": [state.in_words for state in one.startpoints] or None,
    }
    return {name: value for name, value in shown.items() if value is not None}


class Overview(RepeatedStep):
    """Checks all apps repeatedly, and feeds the page; ``found`` asks them."""

    def __init__(self, place: str, found: Callable[[], Sequence[Deployed]], clock: Clock | None = None) -> None:
        super().__init__("overview", EVERY_S)
        self._place = place
        self._found = found
        self._clock = clock or WallClock()
        self._throttle = Throttle(_log)
        self.feed = Feed(lambda document: {"view": document})
        self.step()

    def site(self, token: str) -> Site:
        """The page and its files; ``token`` opens it."""
        return Site(token, _files, self.feed, "run: headrace dashboard")

    @override
    def step(self) -> bool:
        try:
            found = self._found()
        except HeadraceError as error:  # the next check may succeed
            self._throttle.warning("can't look at the apps", error=error.message)
            return True
        document = overview_of(self._place, found, self._clock.now_ms())
        self.feed.publish(lambda: document)
        return True


def _files() -> Mapping[str, Asset]:
    from headrace.web.live_page import overview_files

    return {name: Asset.of(name, text) for name, text in overview_files().items()}
