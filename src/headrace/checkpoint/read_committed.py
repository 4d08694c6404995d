"""The read_committed reader of one framed partition, as pure state: frames go out once their commit is known.

A task's frames are processed inside the app at once; outside of it nobody may see what could still be taken
back. So the reader holds each producer's frames until a frame says that they were committed:

==========================================  =================================================================
frame                                       what happens
==========================================  =================================================================
of a plain writer (UNVERSIONED, seq 0)      released at once: it has no identity and no commit
the same, released before the position      dropped
  that was begun at was taken
(generation, seq) <= last of its producer   dropped: a duplicate, or a late copy of what is void
restore of (g, S)                           held frames up to S are released, the rest is dropped
checkpoint of the held generation           held frames are released
UNVERSIONED (an at-least-once app)          released at once
any other                                   held
==========================================  =================================================================

Within a producer the order is kept. The durable position is the offset of the first held frame and, for each
producer, what has been dealt with; held frames don't survive, they are read again. So are plain frames behind the first
held one, which have nothing but their place to be known by: the position says before which place they were released.
Whoever stores results and position in one transaction has them exactly once.

A reader that is not *whole* begins in mid-stream, and then two things need care. A frame of a higher generation
may come without its restore, which lies before the beginning: what is held of older generations are late copies,
and dropped. And a restore names the generation that made the commit it goes back to: held frames of an older one
are late copies too (their first ones lie before that generation's own restore, which this reader never saw),
perhaps of frames that were void. A reader doesn't become whole by seeing a restore: it may be a late one as well,
of a generation that was replaced before the beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec import UNSET

from headrace.checkpoint.record import Covered, ReaderPosition
from headrace.core.errors import ProtocolError
from headrace.core.frame import UNVERSIONED, ControlMessage, Header, Kind, Restore
from headrace.core.ids import Offset

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeldFrame(Generic[T]):
    """A frame whose commit isn't known yet; ``frame`` is whatever the caller wants back."""

    offset: Offset
    header: Header
    frame: T


@dataclass(slots=True)
class Writer(Generic[T]):
    """One producer as seen by the reader."""

    generation: int = 0
    seq: int = 0
    held: deque[HeldFrame[T]] = field(default_factory=deque)


class ReadCommitted(Generic[T]):
    """Reads from ``position``; None: from where its caller begins.

    ``whole`` says that this is the very beginning of the stream: every producer must introduce itself, and what is
    missing is an error. It is part of the position.
    """

    def __init__(self, position: ReaderPosition | None = None, *, whole: bool = False) -> None:
        self._whole = position.whole if position else whole
        self._after = position.offset if position else None
        known = position.plain_before if position else UNSET
        self._plain_before = -1 if known is UNSET else known
        self._writers: dict[int, Writer[T]] = {
            known.producer: Writer(known.generation, known.seq) for known in (position.covered if position else ())
        }

    @property
    def held(self) -> int:
        """How many frames wait for their commit."""
        return sum(len(writer.held) for writer in self._writers.values())

    def position(self) -> ReaderPosition:
        """Where to begin again, once everything released so far is stored."""
        first = [writer.held[0].offset for writer in self._writers.values() if writer.held]
        offset = min(first) if first else self._after
        covered = [_covered(producer, writer) for producer, writer in self._writers.items()]
        return ReaderPosition(
            offset=offset,
            whole=self._whole,
            covered=tuple(covered),
            plain_before=UNSET if offset is None or self._plain_before <= offset else self._plain_before,
        )

    def receive(
        self, offset: Offset, after: Offset, header: Header, control: ControlMessage | None, frame: T
    ) -> Sequence[HeldFrame[T]]:
        """Take the frame at ``offset`` (``after`` is behind it); answers what is committed now, in order.

        Released are user, watermark and end-of-stream frames.
        """
        self._after = after
        if header.version == UNVERSIONED and header.seq == 0:
            if offset < self._plain_before:
                return ()
            self._plain_before = after
            return (HeldFrame(offset, header, frame),)
        writer = self._writers.get(header.producer)
        if writer is None:
            writer = self._writers[header.producer] = Writer()
        if (header.generation, header.seq) <= (writer.generation, writer.seq):
            return ()
        if isinstance(control, Restore):
            return self._restore(offset, writer, header, control)
        self._in_turn(offset, writer, header)
        writer.generation, writer.seq = header.generation, header.seq
        if header.kind is Kind.CHECKPOINT:
            return _take(writer)
        released = HeldFrame(offset, header, frame)
        if header.version == UNVERSIONED:
            return (released,)
        writer.held.append(released)
        return ()

    def _restore(self, offset: Offset, writer: Writer[T], header: Header, restore: Restore) -> Sequence[HeldFrame[T]]:
        if self._whole and restore.seq > writer.seq:
            self._refuse(offset, writer, header, f", committed through #{restore.seq}")
        held = _take(writer)
        late_copies = writer.generation < restore.committed_by
        writer.generation, writer.seq = header.generation, header.seq
        return [] if late_copies else [each for each in held if each.header.seq <= restore.seq]

    def _in_turn(self, offset: Offset, writer: Writer[T], header: Header) -> None:
        if header.generation == writer.generation:
            if header.seq != writer.seq + 1:
                self._refuse(offset, writer, header, "")
        elif self._whole:
            self._refuse(offset, writer, header, " without the restore frame that begins a generation")
        else:
            writer.held.clear()

    def _refuse(self, offset: Offset, writer: Writer[T], header: Header, detail: str) -> None:
        raise ProtocolError(
            f"producer {header.producer}: after ({writer.generation}, #{writer.seq}) comes {header.kind.name} "
            f"({header.generation}, #{header.seq}){detail} at offset {offset}",
            hint="the stream lost frames, or something else writes it",
        )


def _take(writer: Writer[T]) -> list[HeldFrame[T]]:
    held = list(writer.held)
    writer.held.clear()
    return held


def _covered(producer: int, writer: Writer[T]) -> Covered:
    if not writer.held:
        return Covered(producer=producer, generation=writer.generation, seq=writer.seq)
    first = writer.held[0].header
    return Covered(producer=producer, generation=first.generation, seq=first.seq - 1)
