"""Source partitions: frames that arrive at their times, and an end that shows at its time."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence

from headrace.core.frame import END_VERSION, Checkpoint, Header, Kind, Restore, encode, encode_control
from headrace.core.ids import Offset
from simulator.storage import STEP, Reader
from simulator.world import World


class SourceLog:
    """One source partition. Reading begins at ``start``; None as ``ends_at``: it never ends."""

    wakes = True

    def __init__(
        self, world: World, frames: Sequence[bytes], arrivals: Sequence[float], start: Offset, ends_at: float | None
    ) -> None:
        self.oldest = start
        self.synced = start
        self.kept = True
        """It isn't on the machine whose power fails."""
        self.readers: dict[Reader, None] = {}
        self._world = world
        self._frames = list(frames)
        self._arrivals = list(arrivals)
        self._ends_at = float("inf") if ends_at is None else ends_at
        for at in (*arrivals, *(() if ends_at is None else (ends_at,))):
            world.after(max(0.0, at - world.now), self._ring)

    def sync(self) -> None:
        """All that has come is on the disk."""
        self.synced = self.end

    def lose(self, chance: random.Random) -> range:
        """The power was cut: lose the end that wasn't on the disk, or some of it. Answers which frames are gone.

        What has yet to come comes in their place.
        """
        if self.kept or self.ended:
            return range(0)
        stop = bisect_right(self._arrivals, self._world.now)
        start = chance.randint(min(self.synced // STEP, stop), stop)
        del self._frames[start:stop], self._arrivals[start:stop]
        return range(start, stop)

    def _ring(self) -> None:
        for reader in self.readers:
            reader.stir()

    @property
    def end(self) -> Offset:
        """Behind the last frame that has arrived."""
        return max(self.oldest, STEP * bisect_right(self._arrivals, self._world.now))

    @property
    def all_offsets(self) -> range:
        """Where frames stand that can ever be read, those that have yet to arrive among them."""
        return range(self.oldest, STEP * len(self._frames), STEP)

    def arrived_at(self, offset: Offset) -> float:
        """When the frame at an offset was appended."""
        return self._arrivals[offset // STEP]

    @property
    def ended(self) -> bool:
        """It shows that nothing follows."""
        return self._ends_at <= self._world.now

    @property
    def arrived(self) -> bool:
        """All frames have been there for the taking, and the end if there is one."""
        return self.ended if self._ends_at < float("inf") else max(self._arrivals, default=0.0) <= self._world.now

    def readable(self, offset: Offset) -> bool:
        """See ``Log``."""
        return not offset % STEP

    def offsets(self, start: Offset, stop: Offset) -> list[Offset]:
        """See ``Log``."""
        return list(range(start, stop, STEP))

    def read(self, offset: Offset) -> bytes:
        """The frame at an offset."""
        return self._frames[offset // STEP]


class ForeignApp:
    """Another app that writes a source, exactly-once: what it appends counts once a checkpoint has come.

    At times it dies, and its next generation takes back what wasn't committed. ``frames`` is what stands in the
    partition, plain frames of others among it; ``committed`` says which bodies will ever count.
    """

    def __init__(self, chance: random.Random, producer: int) -> None:
        self.frames: list[bytes] = []
        self.committed: list[int] = []
        self._chance = chance
        self._producer = producer
        self._generation = 0
        self._seq = 0
        self._covered = 0
        self._version = 0
        self._pending: list[int] = []
        self._start()

    def write(self, number: int, body: bytes) -> None:
        """Append a body, by its number; it or somebody else without any guarantee."""
        chance = self._chance
        if chance.random() < 0.4:
            self.frames.append(encode(Header(Kind.USER), body))
            self.committed.append(number)
        else:
            self._seq += 1
            header = Header(Kind.USER, self._producer, self._generation, self._version, self._seq)
            self.frames.append(encode(header, body))
            self._pending.append(number)
        if chance.random() < 0.25:
            self._commit(self._version + 1)
        elif chance.random() < 0.2:
            self._start()

    def end(self) -> None:
        """Commit what is open, for good."""
        self._commit(END_VERSION)

    def _commit(self, following: int) -> None:
        self._seq += 1
        header = Header(Kind.CHECKPOINT, self._producer, self._generation, self._version, self._seq)
        self.frames.append(encode_control(header, Checkpoint(task_name="f/0", task_count=1, next_version=following)))
        self._covered, self._version = self._seq - 1, following
        self.committed += self._pending
        self._pending.clear()

    def _start(self) -> None:
        """A new generation; what the one before has not committed is void."""
        self._pending.clear()
        committed_by, self._generation = self._generation, self._generation + 1
        self._seq = self._covered + 1
        header = Header(Kind.RESTORE, self._producer, self._generation, self._version - 1, self._seq)
        restore = Restore(
            task_name="f/0",
            task_count=1,
            seq=self._covered,
            next_version=self._version,
            committed_by=committed_by if self._covered else 0,
        )
        self.frames.append(encode_control(header, restore))
