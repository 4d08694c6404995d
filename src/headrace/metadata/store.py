"""The metadata store's contract: namespaced keys, versioned values, compare-and-set. And the memory store.

What several processes must agree on (the generation of a task, a startpoint that is written while the app
runs) goes through ``put_if``: whoever read the latest value wins, everybody else reads again. Values are few
and small. ``headrace.testing.metadata_contract.check_metadata`` holds every implementation to what stands
here; the memory store is the reference.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from typing_extensions import override

from headrace.core.errors import UnavailableError
from headrace.core.log import logger

Version = int
"""The version of a value. Above 0, and never used twice in a store, not even after a delete."""

_MOST_ATTEMPTS = 1000

_log = logger(__name__)


class Entry(NamedTuple):
    """A value and the version to name when it is to be replaced."""

    value: bytes
    version: Version


class Put(NamedTuple):
    """Set ``key`` to ``value`` if it stands at ``expected``; None: if it isn't there."""

    key: str
    value: bytes
    expected: Version | None


class MetadataStore(Protocol):
    """Namespaced key-value with compare-and-set. Threads may share a handle.

    A call that returned is durable and seen by every later call of anybody. All of them may raise
    ``UnavailableError`` (nothing happened; try again) and ``StorageError``; writes also
    ``IndeterminateWriteError``.
    """

    def get(self, namespace: str, key: str) -> Entry | None:
        """The value and its version; None when there is none."""
        ...

    def put_if(self, namespace: str, key: str, value: bytes, expected: Version | None) -> Version | None:
        """Set the value if it stands at ``expected`` (None: if absent). Its new version; None if it lost."""
        ...

    def put_each_if(self, namespace: str, puts: Sequence[Put]) -> list[Version | None]:
        """Several ``put_if``, each judged alone, for the price of one: the answers in their order."""
        ...

    def delete_if(self, namespace: str, key: str, expected: Version) -> bool:
        """Delete the key if it stands at ``expected``; False when it doesn't, or isn't there."""
        ...

    def scan(self, namespace: str, prefix: str = "") -> dict[str, Entry]:
        """All keys of the namespace that begin with ``prefix``, sorted; one consistent moment of it."""
        ...

    def close(self) -> None:
        """Release what this handle holds. Idempotent."""
        ...


def update(
    store: MetadataStore, namespace: str, key: str, change: Callable[[bytes | None], bytes | None]
) -> bytes | None:
    """Replace a value by what ``change`` makes of it, whatever others do meanwhile; return what stands now.

    ``change`` is given None for a key that isn't there, and returns None to delete. It may be called again.
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
        _log.debug("somebody else changed the value; trying again", namespace=namespace, key=key)
    raise UnavailableError(
        f"{key!r} of {namespace!r} in the metadata store changed {_MOST_ATTEMPTS} times while it was read",
        hint="find out who writes it all the time",
    )


class MemoryMetadata(MetadataStore):
    """The reference: lives in one process and is gone with it. ``close`` keeps what is in it."""

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
