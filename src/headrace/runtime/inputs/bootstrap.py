"""A task's progress in its side inputs. Everything else waits until all are read up to their ends at the start."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.ids import SSP, Offset
from headrace.runtime.inputs.chooser import Chooser


class Bootstrap:
    """The side inputs of one attempt. Reports to the chooser when one has been read."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._stretches: dict[SSP, tuple[Offset, Offset]] = {}
        """The first and the last offset of each."""
        self._open: set[SSP] = set()

    def begin(self, positions: Mapping[SSP, Offset], ends: Mapping[SSP, Offset]) -> None:
        """Start at these positions; ``ends`` says where the side inputs end now."""
        self._stretches = {ssp: (positions[ssp], end) for ssp, end in ends.items()}
        self._open = set(ends)
        for ssp in ends:
            self.note(ssp, positions[ssp])

    def note(self, ssp: SSP, position: Offset, *, ended: bool = False) -> None:
        """A partition, of a side input or another input, has been processed up to ``position``."""
        if ssp in self._open and (ended or position >= self._stretches[ssp][1]):
            self._open.remove(ssp)
            self._chooser.bootstrapped(ssp)

    def percent(self, positions: Mapping[SSP, Offset]) -> int | None:
        """How much of the side inputs has been read, by offsets; None once all of it has, and nothing waits."""
        if not self._open:
            return None
        whole = sum(max(0, end - begin) for begin, end in self._stretches.values())
        left = sum(self._stretches[ssp][1] - positions[ssp] for ssp in self._open)
        return 100 * (whole - left) // whole
