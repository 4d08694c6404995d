"""Lead a task back from the end of a past range, which a startpoint made it read again, to where it was before.

Runs on the run-loop thread. Nothing is written: the commit record says that a detour is under way, or no more.
"""

from __future__ import annotations

from headrace.core.errors import HeadraceError
from headrace.core.ids import SSP, TaskName
from headrace.core.log import logger
from headrace.runtime.host.attempt import Attempt
from headrace.runtime.host.rest import Doings
from headrace.runtime.inputs.consumers import InputConsumers

_log = logger(__name__)


class Detours:
    """The ends of the detours of one task."""

    def __init__(self, task: TaskName, inputs: InputConsumers, doings: Doings) -> None:
        self._task = task
        self._inputs = inputs
        self._doings = doings

    def look(self, attempt: Attempt) -> None:
        """Leave each detour whose end is reached, once what is before the end has been processed."""
        for ssp, detour in [*attempt.receiver.detours.items()]:
            at = attempt.receiver.positions[ssp]
            if not attempt.chooser.waits(ssp):  # what follows may be a gap, of which nothing is handed out
                at = max(at, self._inputs.position(ssp))
            if at < detour.until:
                continue
            if attempt.receiver.detoured(ssp):
                self._go_back(ssp, attempt)
            else:
                self._inputs.go_past(ssp)

    def _go_back(self, ssp: SSP, attempt: Attempt) -> None:
        detour = attempt.receiver.detours[ssp]
        attempt.chooser.drop(ssp)
        try:
            self._inputs.go_back(ssp, detour)
        except HeadraceError as error:
            error.message = f"task {self._task}: {error.message}"
            raise
        attempt.receiver.rejoin(ssp)
        self._doings.stir()  # a commit has to say so, even if nothing follows
        attempt.bootstrap.note(ssp, detour.offset)
        _log.info(
            "a range was read again; reading goes on where it was before",
            task=str(self._task),
            input=str(ssp),
            until=detour.until,
            offset=detour.offset,
        )
