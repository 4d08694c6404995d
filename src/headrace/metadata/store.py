"""The metadata store's contract (namespaces, versioned values, compare-and-set), and the store in memory.

What several processes must agree on, such as a task's generation, is written with ``put_if``: the writer that read the
latest value wins, all others read again. Values are few and small.
``headrace.testing.metadata_contract.check_metadata`` checks an implementation; the memory store is the reference.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from typing_extensions import override

from headrace.core.errors import UnavailableError
from headrace.core.log import logger

Version = int
"""The version of a value. Above 0, and never used twice in a store, even after a delete."""

_MOST_ATTEMPTS = 1000

_log = logger(__name__)


class Entry(NamedTuple):
    """A value, and the version to give when replacing it."""

    value: bytes
    version: Version


class Put(NamedTuple):
    """Set ``key`` to ``value`` if its version is ``expected``; None: if the key doesn't exist."""

    key: str
    value: bytes
    expected: Version | None


class MetadataStore(Protocol):
    """Keys and values in namespaces, with compare-and-set. Threads may share a handle.

    What a call has written when it returns is durable, and every later call of any process sees it. All methods may
    raise ``UnavailableError`` (nothing happened; try again) and ``StorageError``; writes also
    ``IndeterminateWriteError``.
    """

    def get(self, namespace: str, key: str) -> Entry | None:
        """Return the value and its version; None if the key doesn't exist."""
        ...

    def put_if(self, namespace: str, key: str, value: bytes, expected: Version | None) -> Version | None:
        """Set the value if its version is ``expected`` (None: if absent). Return the new version, or None."""
        ...

    def put_each_if(self, namespace: str, puts: Sequence[Put]) -> list[Version | None]:
        """Do several ``put_if``, each by itself, at the cost of one. Return their results in order."""
        ...

    def delete_if(self, namespace: str, key: str, expected: Version) -> bool:
        """Delete the key if its version is ``expected``. Return False if it isn't, or if the key doesn't exist."""
        ...

    def scan(self, namespace: str, prefix: str = "") -> dict[str, Entry]:
        """Return all keys of the namespace that begin with ``prefix``, sorted, as of one moment."""
        ...

    def close(self) -> None:
        """Release the handle's resources. Idempotent."""
        ...


def update(
    store: MetadataStore, namespace: str, key: str, change: Callable[[bytes | None], bytes | None]
) -> bytes | None:
    """Replace a value by ``change(value)``, whatever other processes do meanwhile; return the new value.

    ``change`` gets None if the key doesn't exist, and returns None to delete it. It may be called several times.
    """
    for _ in range(_MOST_ATTEMPTS):
        entry = store.get(namespace, key)
        new = change(entry.value if entry else None)
        if new is not None:
            done = store.put_if(namespace, key, new, entry.version if entry else None) is not None
        else:
            done = entry is None or store.delete_if(namespace, key, entry.version)
        if done:
            return new
        _log.debug("another writer changed the value; trying again", namespace=namespace, key=key)
    raise UnavailableError(
        f"{key!r} of {namespace!r} in the metadata store changed {_MOST_ATTEMPTS} times while it was being replaced",
        hint="find out which process keeps writing it",
    )


class MemoryMetadata(MetadataStore):
    """The reference implementation, in the memory of one process. ``close`` keeps the contents."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._last_version = 0
        self._lock = threading.Lock()

    @override
    def get(self, namespace: str, key: str) -> Entry | None:
        with self._lock:
            return self._entries.get((namespace, key))

    @override
    def put_if(self, namespace: str, key: str, value: bytes, expected: Version | None) -> Version | None:
        return self.put_each_if(namespace, [Put(key, value, expected)])[0]

    @override
    def put_each_if(self, namespace: str, puts: Sequence[Put]) -> list[Version | None]:
        with self._lock:
            return [self._put(namespace, put) for put in puts]

    @override
    def delete_if(self, namespace: str, key: str, expected: Version) -> bool:
        with self._lock:
            entry = self._entries.get((namespace, key))
            if entry is None or entry.version != expected:
                return False
            del self._entries[namespace, key]
            return True

    @override
    def scan(self, namespace: str, prefix: str = "") -> dict[str, Entry]:
        with self._lock:
            return {
                key: entry
                for (space, key), entry in sorted(self._entries.items())
                if space == namespace and key.startswith(prefix)
            }

    @override
    def close(self) -> None:
        return

    def _put(self, namespace: str, put: Put) -> Version | None:
        entry = self._entries.get((namespace, put.key))
        if (entry.version if entry else None) != put.expected:
            return None
        self._last_version += 1
        self._entries[namespace, put.key] = Entry(bytes(put.value), self._last_version)
        return self._last_version
