"""A thread of the driver that notes on which hosts tasks have begun, so that the next run can put them there again."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from headrace.core.errors import HeadraceError
from headrace.core.ids import TaskName
from headrace.core.log import Throttle, logger
from headrace.metadata.places import Places
from headrace.runners.coordination.messages import AppStatus
from headrace.runners.coordination.repeated import RepeatedStep

LOOK_S = 2.0

_log = logger(__name__)


def whereabouts(status: AppStatus) -> dict[TaskName, str]:
    """The host of each task whose container runs and has begun with all its tasks."""
    begun = {task.name for task in status.tasks if task.state not in ("starting", "restoring")}
    return {
        TaskName.parse(task): container.host
        for container in status.containers
        if container.state in ("running", "finished") and container.host and begun.issuperset(container.tasks)
        for task in container.tasks
    }


def standby_hosts(status: AppStatus) -> dict[TaskName, list[str]]:
    """The hosts of the standbys of each task that have all of its changelog."""
    found: dict[TaskName, set[str]] = {}
    for container in status.containers:
        for one in container.standbys if container.host else ():
            if one.state == "current":
                found.setdefault(TaskName.parse(one.task), set()).add(container.host or "")
    return {task: sorted(hosts) for task, hosts in found.items()}


class PlaceKeeping(RepeatedStep):
    """Looks at the status from ``start`` to ``close``, and writes what has changed. Failures are only logged."""

    def __init__(self, places: Places, status: Callable[[], AppStatus]) -> None:
        super().__init__("places", LOOK_S)
        self._places = places
        self._status = status
        self._known: dict[TaskName, str] = {}
        self._copied: dict[TaskName, list[str]] = {}
        self._throttle = Throttle(_log)

    def look(self) -> None:
        """Write what has changed since the last time."""
        status = self._status()
        found = {task: host for task, host in whereabouts(status).items() if self._known.get(task) != host}
        copied = {task: hosts for task, hosts in standby_hosts(status).items() if self._copied.get(task) != hosts}
        if not found and not copied:
            return
        try:
            self._places.note(found, copied)
        except HeadraceError as error:  # it is written the next time
            self._throttle.warning("can't record where tasks run", error=error.message)
            return
        self._known |= found
        self._copied |= copied

    @override
    def step(self) -> bool:
        self.look()
        return True

    @override
    def last_step(self) -> None:
        self.look()
