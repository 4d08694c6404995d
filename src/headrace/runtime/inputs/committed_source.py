"""A source partition, read committed: another app's frames are released once their commit is known.

Frames of plain writers pass at once. So do bytes that can't be decoded as a frame, about which the intake's policy
decides. A checkpoint keeps the position: the first frame still held, and the last frame handled of each producer.

On a detour (``checkpoint.detours``), frames behind its end only say what was committed before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from headrace.checkpoint.read_committed import ReadCommitted
from headrace.checkpoint.record import ReaderPosition, SourceEntry
from headrace.core.errors import FrameError, ProtocolError
from headrace.core.frame import Header, Kind, body_of, decode_control, decode_header
from headrace.core.ids import SSP, Offset

_PLAIN = Header(Kind.USER)


@dataclass(slots=True)
class Released:
    """Whole frames that may be processed, and their offsets."""

    offsets: list[Offset]
    payloads: list[bytes]


class CommittedSource:
    """One source partition of a record system."""

    def __init__(self, ssp: SSP, start: Offset, saved: SourceEntry | None, *, whole: bool = False) -> None:
        """Start reading at ``start``, the offset of the saved position if there is one.

        ``whole``: without a saved position, nothing was ever before ``start``.
        """
        self._ssp = ssp
        position = ReaderPosition(offset=start, whole=whole)
        self._until: Offset | None = None
        if saved is not None:
            self._until = None if saved.detour is UNSET else saved.detour.until
            position = ReaderPosition(
                offset=start, whole=saved.whole, covered=saved.covered, plain_before=saved.plain_before
            )
        self._reader: ReadCommitted[bytes] = ReadCommitted(position)

    def receive(self, offsets: list[Offset], payloads: list[bytes], after: Offset) -> Released:
        """Take consecutive frames, or none; return all frames that are committed now, in order."""
        released = Released([], [])
        afters = [*offsets[1:], after] if offsets else []
        for offset, payload, follows in zip(offsets, payloads, afters, strict=True):
            try:
                header = decode_header(payload)
                control = None
                if header.kind in (Kind.CHECKPOINT, Kind.RESTORE):
                    control = decode_control(header.kind, body_of(payload))
            except FrameError:
                header, control = _PLAIN, None
            try:
                for held in self._reader.receive(offset, follows, header, control, payload):
                    if self._until is None or held.offset < self._until:
                        released.offsets.append(held.offset)
                        released.payloads.append(held.frame)
            except ProtocolError as error:
                raise ProtocolError(f"{self._ssp}: {error.message}", hint=error.hint) from error
        return released

    @property
    def undecided(self) -> bool:
        """Whether frames wait for their commit, or arrived out of turn."""
        return self._reader.undecided

    def undecided_before(self, offset: Offset) -> bool:
        """Whether that holds for a frame before an offset."""
        return self._reader.undecided_before(offset)

    def entry(self) -> SourceEntry:
        """The position as a checkpoint keeps it."""
        position = self._reader.position()
        return SourceEntry(
            stream=str(self._ssp.stream),
            partition=self._ssp.partition,
            offset=position.offset,
            whole=position.whole,
            covered=position.covered,
            plain_before=position.plain_before,
        )
