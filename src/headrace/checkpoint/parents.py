"""What a task knows of its upstream tasks, apart for each input partition. ``frame_judge`` explains the fields."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from typing_extensions import override

from headrace.core.errors import ProtocolError
from headrace.core.ids import SSP, Offset

_NO_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class EarlyFrame:
    """A frame in the version buffer, under its label."""

    label: int
    generation: int
    seq: int
    offset: Offset


class Parent:
    """One upstream task as seen from one input partition. The head of ``frame_judge`` explains the fields."""

    __slots__ = (
        "aside",
        "buffered",
        "closed",
        "covered",
        "done",
        "fences",
        "generation",
        "label",
        "limit",
        "partition",
        "producer",
        "seq",
    )

    def __init__(self, partition: InputPartition, producer: int, closed: int) -> None:
        self.partition = partition
        self.producer = producer
        self.fences: dict[int, int] = {}
        self.buffered: deque[EarlyFrame] = deque()
        self.set_last(0, 0)
        self.closed = closed
        self.covered = 0
        self.done = 0
        self.label = -1
        self.aside: int | None = None

    def set_last(self, generation: int, seq: int) -> None:
        """Set the last frame taken, and ``limit``: the seq above which frames of its generation are void."""
        self.generation, self.seq = generation, seq
        self.limit = self.limit_of(generation)

    def limit_of(self, generation: int) -> int:
        """Return the lowest S of the fences of newer generations: frames of ``generation`` above it are void."""
        return min((seq for fence, seq in self.fences.items() if fence > generation), default=_NO_LIMIT)

    def fence(self, generation: int, seq: int) -> None:
        """Add the fence of a restore. The same restore again changes nothing."""
        known = self.fences.setdefault(generation, seq)
        if known != seq:
            raise ProtocolError(
                f"{self.partition.ssp}: producer {self.producer} sent two restores of generation {generation}, "
                f"one to seq {known}, one to {seq}",
                hint="two incarnations got the same generation: the metadata store must issue each one only once",
            )
        self.limit = self.limit_of(self.generation)

    def holds(self, label: int) -> bool:
        """Return whether buffered frames of ``label`` must wait until the upstream task has committed them."""
        return self.aside is not None and label > self.closed

    @override
    def __str__(self) -> str:
        return f"{self.partition.ssp}, producer {self.producer}"

    @property
    def last(self) -> str:
        """The identity of the last frame taken, for messages."""
        return f"({self.generation}, #{self.seq})"


class InputPartition:
    """One intermediate input partition. ``position`` is the next offset to receive; None means the oldest frame."""

    __slots__ = ("parents", "position", "ssp")

    def __init__(self, ssp: SSP, producers: Collection[int], closed: int) -> None:
        self.ssp = ssp
        self.position: Offset | None = None
        self.parents = {producer: Parent(self, producer, closed) for producer in producers}
