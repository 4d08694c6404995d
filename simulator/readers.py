"""Readers at the edge: they publish what is committed into a target that keeps rows and position together.

That is the outbox sink: the framed output stream is the outbox, the target's transaction holds the reader's
position. Readers die, and live on as zombies, like tasks do. Some begin in mid-stream.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.frame import Kind, body_of, decode_control, decode_header
from headrace.core.ids import SSP, Offset
from headrace.protocol.read_committed import ReadCommitted
from headrace.protocol.record import ReaderPosition
from simulator.storage import STEP, SimLog, Target
from simulator.world import Actor, Steps, World

_CONTROLS = frozenset({Kind.CHECKPOINT, Kind.RESTORE})

MakeReader = Callable[[ReaderPosition | None, bool], ReadCommitted[bytes]]
Identify = Callable[[SSP, bytes], int]
"""The id of the message that a user frame is."""


class Publisher:
    """Reads one output partition from ``start`` into a target."""

    def __init__(
        self, world: World, ssp: SSP, log: SimLog, start: Offset, make: MakeReader, identify: Identify
    ) -> None:
        self.world = world
        self.ssp = ssp
        self.log = log
        self.start = start
        self.target = Target()
        self.actors: list[Actor] = []
        self._make = make
        self._identify = identify
        self._lives = 0
        self._stored_through = start

    def begin(self) -> None:
        """Start a life; one that goes on is a zombie from now."""
        self._lives += 1
        name = f"reader {self.ssp.stream.name}[{self.ssp.partition}]@{self.start}~{self._lives}"
        self.actors.append(self.world.spawn(name, self._read(name)))

    def power_is_back(self) -> None:
        """Begin again after a power cut."""
        self.start = min(self.start, self.log.end)
        self._stored_through = min(self._stored_through, self.log.end)
        self.begin()

    def _sync(self) -> None:
        """Or the target could remember a place that the log doesn't reach after a power cut."""
        self.log.sync()

    @property
    def drained(self) -> bool:
        """Everything there is has been read and stored."""
        return self._stored_through >= self.log.end

    def read_alone(self, start: Offset) -> list[int]:
        """What a reader that begins at ``start`` gets from the log as it is now."""
        reader, rows = self._make(None, start == 0), []
        for offset in self.log.offsets(start, self.log.end):
            rows += self._take(reader, offset)
        return rows

    def _take(self, reader: ReadCommitted[bytes], offset: Offset) -> list[int]:
        payload = self.log.read(offset)
        header = decode_header(payload)
        control = decode_control(header.kind, body_of(payload)) if header.kind in _CONTROLS else None
        released = reader.receive(offset, offset + STEP, header, control, payload)
        return [self._identify(self.ssp, held.frame) for held in released if held.header.kind is Kind.USER]

    def _read(self, name: str) -> Steps:
        chance = self.world.chance
        while True:
            expected, position = self.target.load()
            offset = self.start if position is None or position.offset is None else position.offset
            reader = self._make(position, self.start == 0)
            rows: list[int] = []
            while True:
                count = 1 + int(chance.random() * 8)
                while count and (at := self.log.first(offset)) is not None:
                    rows += self._take(reader, at)
                    offset = at + STEP
                    count -= 1
                if self.log.first(offset) is None:
                    offset = self.log.end
                yield 2 + chance.random() * 20
                if chance.random() < 0.5:
                    continue
                self._sync()
                if not self.target.store(expected, reader.position(), rows):
                    self.world.tell(name, "lost a transaction to another reader, begins again")
                    break
                if rows and self.world.story is not None:
                    self.world.tell(name, f"publishes {rows}")
                expected, rows = expected + 1, []
                self._stored_through = max(offset, self._stored_through)
                yield chance.random() * 10
