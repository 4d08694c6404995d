"""One task's changelog partition as I/O: append, flush, read. Which records count is the protocol's matter.

Trimming cuts at the commit frame that a snapshot holds. Blocking: ``flush`` and ``read``.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.core.errors import CorruptLogError, FrameError, TrimmedOffsetError, UsageError
from headrace.core.frame import Header, body_of, decode_header, encode
from headrace.core.ids import SSP, Offset
from headrace.runtime.connections import Connections
from headrace.systems.base import Edge, Records
from headrace.systems.registry import SystemSpec
from headrace.systems.whole import next_polled, polled_to

_READ_BYTES = 8 << 20


class ChangelogPartition:
    """The changelog of one task."""

    def __init__(self, ssp: SSP, system: SystemSpec, connections: Connections) -> None:
        self.ssp = ssp
        self._admin = connections.admin(system)
        self._producer = connections.record_producer(system)
        self._consumer = connections.reader(system)

    def append(self, header: Header, body: bytes) -> int:
        """Send a record; returns its size."""
        frame = encode(header, body)
        self._producer.send(self.ssp.stream.name, self.ssp.partition, frame)
        return len(frame)

    def flush(self) -> Offset:
        """Wait until the appended records are acknowledged; return the offset after the last one."""
        return self._producer.flush()[self.ssp.stream.name, self.ssp.partition]

    def read(self, start: Offset | None, end: Offset) -> Iterator[tuple[Offset, Header, memoryview]]:
        """The records from ``start`` (None: the oldest kept) up to ``end``."""
        consumer = self._consumer
        consumer.register(self.ssp, Edge.OLDEST if start is None else start)
        for polled in polled_to(consumer, self.ssp, end, _READ_BYTES):
            if not isinstance(polled, Records):
                raise CorruptLogError(f"{self.ssp}: a changelog can't end or hold rows, this one does")
            for offset, payload in zip(polled.offsets, polled.payloads, strict=True):
                if offset >= end:
                    return
                yield offset, self._header(offset, payload), body_of(payload)

    def header_at(self, offset: Offset) -> Header | None:
        """The header of the record that begins at ``offset``; None when no record begins there, or it was trimmed."""
        try:
            self._consumer.register(self.ssp, offset)
            found = [] if self._consumer.lag(self.ssp) == 0 else next_polled(self._consumer, self.ssp, offset + 1, 1)
        except (TrimmedOffsetError, CorruptLogError, UsageError):
            return None
        for polled in found:
            if isinstance(polled, Records) and polled.offsets[0] == offset:
                return self._header(offset, polled.payloads[0])
        return None

    def _header(self, offset: Offset, payload: bytes) -> Header:
        try:
            return decode_header(payload)
        except FrameError as error:
            raise CorruptLogError(f"{self.ssp} at offset {offset}: {error.message}", hint=error.hint) from error

    def trim(self, commit: Offset) -> None:
        """Give up what is before a commit that a snapshot holds."""
        self._admin.trim(self.ssp, commit)

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()
