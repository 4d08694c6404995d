"""The metadata store's contract: namespaces, versioned values, compare-and-set.

What several processes must agree on, such as a task's generation, is written with ``write``: the writer that read the
latest values wins, all others read again. Values are few and small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from headrace.core.errors import ProtocolError, UnavailableError
from headrace.core.log import logger

Version = int
"""The version of a value. Above 0, never used twice in a store, even after a delete, and rising from write to write."""

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


class Delete(NamedTuple):
    """Delete ``key`` if its version is ``expected``."""

    key: str
    expected: Version


Change = Put | Delete


class MetadataStore(Protocol):
    """Keys and values in namespaces, with compare-and-set. Threads may share a handle.

    What a call has written when it returns is durable, and every later call of any process sees it. All methods may
    raise ``UnavailableError`` (nothing happened; try again) and ``StorageError``; writes also
    ``IndeterminateWriteError``.
    """

    @property
    def place(self) -> str:
        """Where it is, for messages: a home folder, or the URL of a server without its secrets."""
        ...

    def get(self, namespace: str, key: str) -> Entry | None:
        """Return the value and its version; None if the key doesn't exist."""
        ...

    def write(self, namespace: str, changes: Sequence[Change]) -> list[Version] | None:
        """Make all changes or none. Return the new versions in order, with 0 for a delete.

        Returns None, and changes nothing, if one of the keys hasn't the version that its change expects. Each key may
        be there once (``check_changes``).
        """
        ...

    def scan(self, namespace: str, prefix: str = "") -> dict[str, Entry]:
        """Return all keys of the namespace that begin with ``prefix``, sorted, as of one moment."""
        ...

    def close(self) -> None:
        """Release the handle's resources. Idempotent."""
        ...

    def put_if(self, namespace: str, key: str, value: bytes, expected: Version | None) -> Version | None:
        """Set the value if its version is ``expected`` (None: if absent). Return the new version, or None."""
        versions = self.write(namespace, [Put(key, value, expected)])
        return None if versions is None else versions[0]

    def delete_if(self, namespace: str, key: str, expected: Version) -> bool:
        """Delete the key if its version is ``expected``. Return False if it isn't, or if the key doesn't exist."""
        return self.write(namespace, [Delete(key, expected)]) is not None


def check_changes(changes: Sequence[Change]) -> None:
    """Raise ``ProtocolError`` if a key is changed twice. For implementations of ``write``."""
    keys = [change.key for change in changes]
    twice = {key for key in keys if keys.count(key) > 1} if len(set(keys)) < len(keys) else ()
    if twice:
        raise ProtocolError(f"one write to the metadata store changes {', '.join(map(repr, sorted(twice)))} twice")


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
        hint="find the process that keeps changing it",
    )
