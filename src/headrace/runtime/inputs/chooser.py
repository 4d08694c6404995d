"""Choose the envelope that a task processes next. Pure, and fair.

Within a partition the order is always kept. Between partitions, a side input that is still being read up to its end
comes first, then control messages (they cost nothing and may release others), then the rest in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from headrace.core.ids import SSP
from headrace.runtime.inputs.envelope import Envelope, Frames, PartitionEnd, RowBatch, SingleFrame


class Chooser:
    """The waiting envelopes of one task: one queue per partition."""

    def __init__(self, ssps: Iterable[SSP], bootstrap: Iterable[SSP] = ()) -> None:
        self._queues: dict[SSP, deque[Envelope]] = {ssp: deque() for ssp in ssps}
        self._turns: deque[SSP] = deque(self._queues)
        self._bootstrap = dict.fromkeys(bootstrap)  # a dict, as a set has no order to rely on
        self._bytes: dict[SSP, int] = dict.fromkeys(self._queues, 0)
        self.now_ms = 0.0
        """When (monotonic) what is offered next has arrived."""

    def offer(self, envelope: Envelope) -> None:
        """Append an envelope to the queue of its partition."""
        if isinstance(envelope, Frames | RowBatch):
            envelope.arrived_ms = self.now_ms
        self._queues[envelope.ssp].append(envelope)
        self._bytes[envelope.ssp] += envelope.bytes

    def put_back(self, envelope: Envelope) -> None:
        """Return what was chosen, or the rest of it, to the front of its queue."""
        self._queues[envelope.ssp].appendleft(envelope)
        self._bytes[envelope.ssp] += envelope.bytes

    def choose(self) -> Envelope | None:
        """Take the next envelope; None if none may be processed now."""
        for ssp in self._bootstrap:
            if self._queues[ssp]:
                return self._take(ssp)
        if self._bootstrap:
            return None
        for ssp, queue in self._queues.items():
            if queue and isinstance(queue[0], SingleFrame | PartitionEnd):
                return self._take(ssp)
        for _ in range(len(self._turns)):
            ssp = self._turns[0]
            self._turns.rotate(-1)
            if self._queues[ssp]:
                return self._take(ssp)
        return None

    def bootstrapped(self, ssp: SSP) -> None:
        """The side input has been read up to where it ended at the start: others need not wait for it any longer."""
        self._bootstrap.pop(ssp, None)

    @property
    def ready(self) -> bool:
        """There is an envelope that may be processed now."""
        queues = (self._queues[ssp] for ssp in self._bootstrap) if self._bootstrap else self._queues.values()
        return any(queues)

    @property
    def bootstrapping(self) -> Collection[SSP]:
        """The side inputs that everything else waits for."""
        return self._bootstrap.keys()

    def waiting_bytes(self, ssp: SSP) -> int:
        """How many bytes of a partition wait. The host stops polling it above a limit."""
        return self._bytes[ssp]

    def waits(self, ssp: SSP) -> bool:
        """Something of this partition waits for its turn."""
        return bool(self._queues[ssp])

    def clear(self) -> None:
        """Drop everything that waits."""
        for ssp in self._queues:
            self.drop(ssp)

    def drop(self, ssp: SSP) -> None:
        """Drop what waits of a partition."""
        self._queues[ssp].clear()
        self._bytes[ssp] = 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def _take(self, ssp: SSP) -> Envelope:
        envelope = self._queues[ssp].popleft()
        self._bytes[ssp] -= envelope.bytes
        return envelope
