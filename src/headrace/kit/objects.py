"""An object store in memory, for tests and the simulator."""

from __future__ import annotations

from collections.abc import Collection

from typing_extensions import override

from headrace.stores.snapshots import Chunks, ObjectStore


class MemoryObjects(ObjectStore):
    """Objects in a dict."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    @override
    def create(self, name: str, data: bytes) -> bool:
        if name in self.objects:
            return False
        self.objects[name] = data
        return True

    @override
    def put(self, name: str, size: int, chunks: Chunks) -> None:
        self.objects[name] = b"".join(chunks())

    @override
    def get(self, name: str) -> bytes | None:
        return self.objects.get(name)

    @override
    def read(self, name: str, start: int, length: int) -> bytes | None:
        data = self.objects.get(name)
        return None if data is None else data[start : start + length]

    @override
    def list(self, prefix: str) -> dict[str, int]:
        return {name: len(data) for name, data in sorted(self.objects.items()) if name.startswith(prefix)}

    @override
    def copy(self, source: str, target: str) -> bool:
        if source not in self.objects:
            return False
        self.objects[target] = self.objects[source]
        return True

    @override
    def delete(self, names: Collection[str]) -> None:
        for name in names:
            self.objects.pop(name, None)
