"""The operations that Headrace needs of an object store. Objects appear atomically; their names may have slashes.

All calls block, and may be made from several threads. One that fails with ``UnavailableError`` may be repeated; it may
have happened nevertheless, and it may even happen later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator

Chunks = Callable[[], Iterator[bytes]]
"""Reads something from its beginning, a piece at a time."""


class ObjectStore(ABC):
    """A place for objects by name. Transient errors are ``UnavailableError``, permanent ones another error."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write a small object, unless there is one of this name: then it stays, and the answer is False."""

    @abstractmethod
    def put(self, name: str, size: int, chunks: Chunks) -> None:
        """Write an object of any size, in place of one of this name."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """Return a small object; None if it doesn't exist."""

    @abstractmethod
    def read(self, name: str, start: int, length: int) -> bytes | None:
        """The bytes of an object from ``start``, which is within it: ``length`` (1 or more), or all up to its end.

        None if the object doesn't exist.
        """

    @abstractmethod
    def list(self, prefix: str) -> dict[str, int]:
        """The names below ``prefix`` (which ends in a slash), each with the size of its object."""

    @abstractmethod
    def copy(self, source: str, target: str) -> bool:
        """Copy an object within the store; return False if ``source`` doesn't exist."""

    @abstractmethod
    def delete(self, names: Collection[str]) -> None:
        """Delete objects, in no particular order. Those that aren't there do no harm."""
