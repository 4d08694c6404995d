"""The control of a run from other threads: they ask it to end, and read its status from the coordinator."""

from __future__ import annotations

from headrace.runners.coordination.server import Coordinator
from headrace.runners.interrupts import Interrupts


class RunControl(Interrupts):
    """The signals of a run, and what else may ask it to end. ``request`` drains it, ``stop`` ends it at once."""

    def __init__(self, said_at_start: str = "") -> None:
        super().__init__(said_at_start)
        self.coordinator: Coordinator | None = None
        """None before the app is about to run."""
        self._stopped = False

    def attach(self, coordinator: Coordinator) -> None:
        """Note that the app is about to run. If it was asked to stop before, it stops."""
        self.coordinator = coordinator
        if self._stopped:
            coordinator.stop()

    def stop(self) -> None:
        """Make the run end at once, without a commit, even before it has begun."""
        self._stopped = True  # before looking for the coordinator, because otherwise nothing might stop it
        if self.coordinator is not None:
            self.coordinator.stop()
        else:
            self.request()
