"""A metadata store in memory: the reference for the contract of ``headrace.metadata.store``."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from typing_extensions import override

from headrace.metadata.store import Change, Delete, Entry, MetadataStore, Version, check_changes


class MemoryMetadata(MetadataStore):
    """The reference implementation, in the memory of one process. ``close`` keeps the contents."""

    def __init__(self, place: str = "memory") -> None:
        self._place = place
        self._entries: dict[tuple[str, str], Entry] = {}
        self._last_version = 0
        self._lock = threading.Lock()

    @property
    @override
    def place(self) -> str:
        return self._place

    @override
    def get(self, namespace: str, key: str) -> Entry | None:
        with self._lock:
            return self._entries.get((namespace, key))

    @override
    def write(self, namespace: str, changes: Sequence[Change]) -> list[Version] | None:
        check_changes(changes)
        with self._lock:
            if not all(self._is_as_expected(namespace, change) for change in changes):
                return None
            return [self._make(namespace, change) for change in changes]

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

    def _is_as_expected(self, namespace: str, change: Change) -> bool:
        entry = self._entries.get((namespace, change.key))
        return (entry.version if entry else None) == change.expected

    def _make(self, namespace: str, change: Change) -> Version:
        if isinstance(change, Delete):
            del self._entries[namespace, change.key]
            return 0
        self._last_version += 1
        self._entries[namespace, change.key] = Entry(bytes(change.value), self._last_version)
        return self._last_version
