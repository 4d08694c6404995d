"""What a task is fed: batches of messages and, between them, control messages, in the order of their partition."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from headrace.core.frame import ControlMessage, Header
from headrace.core.ids import SSP, Offset


@dataclass(slots=True)
class Batch:
    """Messages of one partition, and where they came from: the offsets ``first`` up to (not with) ``next``."""

    ssp: SSP
    rows: pl.DataFrame
    first: Offset
    next: Offset
    bytes: int = 0


@dataclass(slots=True)
class Control:
    """A control message as it stood in the stream."""

    ssp: SSP
    header: Header
    message: ControlMessage
    first: Offset
    next: Offset
    bytes: int = 0


@dataclass(slots=True)
class PartitionEnd:
    """A source partition has ended: it is bounded, or it was sealed."""

    ssp: SSP
    next: Offset
    bytes: int = 0


Envelope = Batch | Control | PartitionEnd
