"""A metadata store in memory: the reference for the contract of ``headrace.metadata.store``."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from typing_extensions import override

from headrace.metadata.store import Entry, MetadataStore, Put, Version


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
