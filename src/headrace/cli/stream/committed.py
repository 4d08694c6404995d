"""Shows a frame once it is known that the checkpoint it belongs to was committed."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.checkpoint.reading import ReadCommitted
from headrace.cli.stream.frames import Frame, control_of
from headrace.core.errors import ProtocolError
from headrace.core.frame import Kind
from headrace.core.ids import SSP

_CONTROL = (Kind.WATERMARK, Kind.END_OF_STREAM, Kind.CHECKPOINT, Kind.RESTORE)


class CommittedGate:
    """A ``Gate`` that holds frames until their commit, and drops those that were taken back."""

    def __init__(self) -> None:
        self._partitions: dict[SSP, ReadCommitted[Frame]] = {}

    @property
    def held(self) -> int:
        """How many frames still wait."""
        return sum(partition.held for partition in self._partitions.values())

    def admit(self, frame: Frame) -> Sequence[Frame]:
        """See ``Gate``."""
        partition = self._partitions.setdefault(frame.ssp, ReadCommitted())
        control = control_of(frame) if frame.header.kind in _CONTROL else None
        try:
            released = partition.receive(frame.offset, frame.after, frame.header, control, frame)
        except ProtocolError as error:
            raise ProtocolError(f"{frame.ssp}: {error.message}", hint=error.hint) from error
        return [each.frame for each in released]
