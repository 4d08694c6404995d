"""What the consumers of all systems do in the same way: find a registered partition, and let go of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from typing_extensions import override

from headrace.core.errors import StreamNotFoundError
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Consumer


@dataclass(slots=True)
class Reading:
    """A registered partition, the offset that it is read from next, and whether its end was reported."""

    ssp: SSP
    position: Offset = 0
    ended: bool = False


R = TypeVar("R", bound=Reading)


class RegisteringConsumer(Consumer, Generic[R]):
    """A consumer that keeps a ``Reading`` for each registered partition."""

    def __init__(self) -> None:
        self._readings: dict[SSP, R] = {}

    @override
    def position(self, ssp: SSP) -> Offset:
        return self._reading(ssp).position

    @override
    def unregister(self, ssp: SSP) -> None:
        reading = self._readings.pop(ssp, None)
        if reading is not None:
            self._release(reading)

    @override
    def close(self) -> None:
        for ssp in list(self._readings):
            self.unregister(ssp)

    def _reading(self, ssp: SSP) -> R:
        reading = self._readings.get(ssp)
        if reading is None:
            raise StreamNotFoundError(f"{ssp} is not registered with this consumer")
        return reading

    def _asked(self, ssps: Iterable[SSP] | None) -> list[R]:
        """The readings of these partitions, or all."""
        return list(self._readings.values()) if ssps is None else [self._reading(ssp) for ssp in ssps]

    def _release(self, reading: R) -> None:
        """Release what a reading holds; it is no longer registered."""
