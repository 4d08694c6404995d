"""The read_committed reader of one framed partition, as pure state: it releases frames once their commit is known.

Outside the app, no reader may see a frame that could still become void. So this one holds each producer's frames until
another frame says that they were committed:

==========================================  =================================================================
frame                                       what happens
==========================================  =================================================================
plain: from a writer that is no task        released at once: it has no identity and no commit
  (UNVERSIONED, seq 0)
plain, and released before the position     dropped
  was saved
(generation, seq) <= its producer's last    dropped: a duplicate, or a late copy of a void frame
restore of (g, S)                           held frames up to S are released, the others are dropped; an error if more
                                            than S was known to be committed
checkpoint                                  held frames of its generation are released, the others are dropped
out of turn: frames are missing before it   dropped, unless it is a checkpoint: then an error, as it is for a restore
                                            that says that what is missing was committed
UNVERSIONED, from an at-least-once app      released at once; if it is out of turn, an error
any other                                   held
==========================================  =================================================================

After a power cut, frames that no commit covers may be missing. The restore that follows makes void what came after.

The durable position consists of the offset of the first frame that is held or out of turn and, for each producer, the
last (generation, seq) before its held frames. Held frames are read again from there. So are the plain frames after the
first held one, which have no identity but their offset: so the position also says before which offset they were
released. A reader that stores results and position in one transaction gets every message exactly once.

A reader that is not *whole* starts in mid-stream, and must then handle two cases:

- A frame of a higher generation may arrive without its restore. If the restore precedes the start, what is held of
  older generations are late copies. If a power cut took the restore, they may be committed. So they are held until the
  generation commits, which proves that its restore was on the disk, or until the next restore says what is committed.
- A restore names the generation that made the commit it goes back to. Held frames of an older generation are late
  copies too, perhaps of void frames: their originals precede that generation's own restore, which this reader never
  saw.

Seeing a restore doesn't make a reader whole. That restore may itself be late, from a generation that was replaced
before the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec import UNSET

from headrace.core.errors import ProtocolError
from headrace.core.frame import UNVERSIONED, ControlMessage, Header, Kind, Restore
from headrace.core.ids import Offset
from headrace.protocol.record import Covered, ReaderPosition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeldFrame(Generic[T]):
    """A frame and where it was read; ``frame`` is whatever the caller passed to ``receive``."""

    offset: Offset
    header: Header
    frame: T


@dataclass(slots=True)
class Producer(Generic[T]):
    """One producer as seen by the reader: its last frame, and its frames whose commit isn't known yet."""

    generation: int = 0
    seq: int = 0
    held: deque[HeldFrame[T]] = field(default_factory=deque)
    committed: int = 0
    """Through which seq it is known to have committed."""
    gap: Offset | None = None
    """Where the first frame out of turn is, since the last restore."""

    @property
    def first(self) -> Offset | None:
        """Where to read again to find out what was committed; None if nothing waits for that."""
        return self.held[0].offset if self.held else self.gap


class ReadCommitted(Generic[T]):
    """Releases the committed frames of one partition. ``position`` is a saved position, None for a new reader.

    ``whole``: a new reader starts at the very beginning of the stream, so every producer must start with a restore
    frame, and missing frames are an error. It is saved with the position.
    """

    def __init__(self, position: ReaderPosition | None = None, *, whole: bool = False) -> None:
        self._whole = position.whole if position else whole
        self._after = position.offset if position else None
        known = position.plain_before if position else UNSET
        self._plain_before = -1 if known is UNSET else known
        self._producers: dict[int, Producer[T]] = {
            known.producer: Producer(known.generation, known.seq, committed=known.committed)
            for known in (position.covered if position else ())
        }

    @property
    def held(self) -> int:
        return sum(len(producer.held) for producer in self._producers.values())

    @property
    def undecided(self) -> bool:
        return self.undecided_before(None)

    def undecided_before(self, offset: Offset | None) -> bool:
        """Whether that holds for a frame before an offset (None: for any)."""
        first = [producer.first for producer in self._producers.values()]
        return any(each is not None and (offset is None or each < offset) for each in first)

    def position(self) -> ReaderPosition:
        first = (producer.first for producer in self._producers.values())
        offset = min((each for each in first if each is not None), default=self._after)
        covered = [_covered(number, producer) for number, producer in self._producers.items()]
        plain_before = UNSET if offset is None or self._plain_before <= offset else self._plain_before
        return ReaderPosition(offset=offset, whole=self._whole, covered=tuple(covered), plain_before=plain_before)

    def receive(
        self, offset: Offset, after: Offset, header: Header, control: ControlMessage | None, frame: T
    ) -> Sequence[HeldFrame[T]]:
        """Take the frame at ``offset``; return the data frames that are now known to be committed, in order."""
        self._after = after
        if header.version == UNVERSIONED and header.seq == 0:
            if offset < self._plain_before:
                return ()
            self._plain_before = after
            return (HeldFrame(offset, header, frame),)
        producer = self._producers.get(header.producer)
        if producer is None:
            producer = self._producers[header.producer] = Producer()
        if (header.generation, header.seq) <= (producer.generation, producer.seq):
            return ()
        if isinstance(control, Restore):
            return self._restore(offset, producer, header, control)
        if not self._in_turn(offset, producer, header):
            if producer.gap is None:
                producer.gap = offset
            return ()
        producer.generation, producer.seq = header.generation, header.seq
        if header.kind is Kind.CHECKPOINT:
            producer.committed = header.seq - 1
            return _take_held(producer, header.generation, header.seq)
        released = HeldFrame(offset, header, frame)
        if header.version == UNVERSIONED:
            return (released,)
        producer.held.append(released)
        return ()

    def _restore(
        self, offset: Offset, producer: Producer[T], header: Header, restore: Restore
    ) -> Sequence[HeldFrame[T]]:
        late_copies = producer.generation < restore.committed_by
        if restore.seq > producer.seq and (self._whole or (producer.gap is not None and not late_copies)):
            self._refuse(offset, producer, header, f", committed through #{restore.seq}")
        if restore.seq < producer.committed:
            raise ProtocolError(
                f"producer {header.producer}: generation {header.generation} goes back to #{restore.seq} at offset "
                f"{offset}, but #{producer.committed} was committed: commits of this producer are missing",
                hint="its changelog lost its end in a machine crash, or comes from an older backup: put a backup of "
                "the whole home back",
            )
        producer.committed = restore.seq
        producer.generation, producer.seq, producer.gap = header.generation, header.seq, None
        return _take_held(producer, restore.committed_by, restore.seq)

    def _in_turn(self, offset: Offset, producer: Producer[T], header: Header) -> bool:
        detail = ""
        if header.generation == producer.generation:
            if header.seq == producer.seq + 1:
                return True
        elif self._whole:
            detail = " without the restore frame that starts a generation"
        else:
            if header.version == UNVERSIONED:  # nothing of it will say what was committed before
                producer.held.clear()
            producer.gap = None
            return True
        if header.kind is Kind.CHECKPOINT or header.version == UNVERSIONED:
            self._refuse(offset, producer, header, detail)
        return False

    def _refuse(self, offset: Offset, producer: Producer[T], header: Header, detail: str) -> None:
        raise ProtocolError(
            f"producer {header.producer}: received {header.kind.name} ({header.generation}, #{header.seq}){detail} "
            f"at offset {offset} after ({producer.generation}, #{producer.seq}): frames are missing",
            hint="the stream lost frames, or another program writes to it",
        )


def _take_held(producer: Producer[T], generation: int, seq: int) -> list[HeldFrame[T]]:
    held = [each for each in producer.held if each.header.generation >= generation and each.header.seq <= seq]
    producer.held.clear()
    return held


def _covered(number: int, producer: Producer[T]) -> Covered:
    if not producer.held:
        generation, seq = producer.generation, producer.seq
    else:
        first = producer.held[0].header
        generation, seq = first.generation, first.seq - 1
    return Covered(producer=number, generation=generation, seq=seq, committed=producer.committed)
