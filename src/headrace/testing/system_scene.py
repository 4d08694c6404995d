"""What the checks of a system share: opening and writing streams, waiting, and raising errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any

from headrace.core.errors import (
    HeadraceError,
)
from headrace.core.ids import SSP, Offset, StreamId
from headrace.core.readable import readable
from headrace.systems.base import Consumer, Edge, Polled, Position, Producer, Records, System


class ContractError(AssertionError):
    """An implementation breaks its contract."""


def expect(holds: bool, said: str) -> None:
    """Raise ``ContractError`` unless ``holds``."""
    if not holds:
        raise ContractError(said)


def expect_raises(error: type[HeadraceError], call: Callable[[], Any], said: str) -> None:
    """Raise ``ContractError`` unless ``call`` raises ``error``."""
    try:
        result = call()
    except error:
        return
    except Exception as other:
        raise ContractError(f"{said}: {error.__name__} expected, {type(other).__name__} came: {other}") from other
    raise ContractError(f"{said}: {error.__name__} expected, nothing was raised (the call gave {result!r})")


class Scene:
    """A system, and what a check opened on it: closed at the end."""

    def __init__(self, make_system: Callable[[], System], check: str, wait_s: float) -> None:
        self.system = make_system()
        self.other = make_system()
        self.admin = self.system.admin()
        self.wait_s = wait_s
        self._name = f"{check.replace('_', '-')}-{uuid.uuid4().hex[:8]}"
        self._made = 0
        self._open: list[Consumer | Producer] = []

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for opened in self._open:
            try:
                opened.close()
            except HeadraceError:
                # The check has reported its own failure already.
                if kind is None:
                    raise

    def close(self, opened: Consumer | Producer) -> None:
        """Close something before the end of the check."""
        self._open.remove(opened)
        opened.close()

    def stream(self, partitions: int = 1) -> str:
        """A new stream."""
        self._made += 1
        name = f"{self._name}-{self._made}"
        self.admin.create(name, partitions)
        return name

    def consumer(self, ssp: SSP | None = None, position: Position = Edge.OLDEST) -> Consumer:
        """A new consumer, perhaps registered."""
        consumer = self.system.consumer()
        self._open.append(consumer)
        if ssp is not None:
            consumer.register(ssp, position)
        return consumer

    def producer(self, system: System | None = None) -> Producer:
        """A new producer."""
        producer = (system or self.system).producer()
        self._open.append(producer)
        return producer

    def write(self, stream: str, payloads: list[bytes], partition: int = 0, system: System | None = None) -> Offset:
        """Append and flush. Returns the offset after the last record."""
        producer = self.producer(system)
        for payload in payloads:
            producer.send(stream, partition, payload)
        return producer.flush()[stream, partition]

    def polls(self, consumer: Consumer, enough: Callable[[list[Polled]], bool], **options: Any) -> list[Polled]:
        """Poll until there are enough records. Raises ``ContractError`` after the waiting time."""
        got: list[Polled] = []
        deadline = time.monotonic() + self.wait_s
        while not enough(got):
            if time.monotonic() > deadline:
                raise ContractError(f"not readable after {self.wait_s} s; so far: {_brief(got)}")
            polled = consumer.poll(**options)
            got.extend(polled)
            if not polled:
                self.wait(consumer, 0.01)
        return got

    def read(self, consumer: Consumer, count: int, **options: Any) -> list[tuple[Offset, bytes]]:
        """The next ``count`` records, with their offsets, and no more."""
        got = self.polls(consumer, lambda polled: len(records_in(polled)) >= count, **options)
        got.extend(consumer.poll(**options))
        records = records_in(got)
        expect(len(records) == count, f"{count} records expected, {len(records)} came")
        return records

    def wait(self, consumer: Consumer, seconds: float) -> bool:
        """Wait until the consumer's descriptor is readable, or the time is over."""
        fd = consumer.fileno()
        if fd is None:
            time.sleep(min(seconds, 0.01))
            return True
        return bool(readable(fd, seconds * 1000))


def ssp(stream: str, partition: int = 0) -> SSP:
    """A partition of a stream under test."""
    return SSP(StreamId("checked", stream), partition)


def records_in(polled: list[Polled]) -> list[tuple[Offset, bytes]]:
    """The records of some polls, in order."""
    pairs: list[tuple[Offset, bytes]] = []
    for item in polled:
        if isinstance(item, Records):
            expect(len(item.offsets) == len(item.payloads), "as many offsets as payloads expected")
            expect(bool(item.payloads), "a Records without a record was handed out")
            expect(all(type(payload) is bytes for payload in item.payloads), "payloads are bytes")
            pairs.extend(zip(item.offsets, item.payloads, strict=True))
    return pairs


def _brief(polled: list[Polled]) -> str:
    return ", ".join(f"{type(item).__name__} of {item.ssp} to {item.next}" for item in polled) or "nothing"
