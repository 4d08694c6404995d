"""The contract of consumers that are woken together. ``base`` has the other contracts."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.systems.base import Consumer


class Wakeups(Protocol):
    """Consumers that one thread uses, which are woken together."""

    def consumer(self) -> Consumer:
        """Return a new consumer. Its ``fileno`` is that of the group, and ``poll`` doesn't clear it."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a ``poll`` of one of them may return something new."""
        ...

    def stirred(self) -> Collection[Consumer]:
        """Return the consumers that may have something new since the last call, and clear the descriptor.

        A consumer that is named has to be polled until it returns nothing. Some may be named without cause.
        """
        ...

    def close(self) -> None:
        """Release the descriptor. The consumers are closed by then."""
        ...
