"""What a store writes into its part of the local database, in memory."""

from collections.abc import Iterator


class Disk:
    """What a store wrote, as the local database would keep it."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        self.values.pop(key, None)

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.values.items() if k.startswith(prefix)))
