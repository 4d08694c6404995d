"""A lease table in memory: for tests and the simulator. It keeps items as DynamoDB would."""

from __future__ import annotations

from typing_extensions import override

from headrace.systems.kinesis.leases.row import KEY, Item, Lease, number, parse_lease, text
from headrace.systems.kinesis.leases.table import Kind, LeaseTable, Write, Written


class MemoryLeaseTable(LeaseTable):
    """A table that others may share: give it the same ``items``."""

    def __init__(self, items: dict[str, Item] | None = None) -> None:
        self.items = {} if items is None else items

    @property
    @override
    def name(self) -> str:
        return "memory"

    @override
    def ensure(self) -> None:
        return

    @override
    def leases(self) -> list[Lease]:
        found = (parse_lease(item) for item in self.items.values())
        return [lease for lease in found if lease is not None]

    @override
    def write(self, write: Write) -> Written:
        item = self.items.get(write.shard)
        seen = item or {}
        if any(seen.get(name) != value for name, value in write.when.items()):
            return Written(False, parse_lease(item) if item is not None else None)
        if write.kind is Kind.DELETE:
            self.items.pop(write.shard, None)
            return Written(True, None)
        after = {name: value for name, value in seen.items() if name not in write.remove} | dict(write.put)
        for name, by in write.add.items():
            after[name] = number(int(after.get(name, number(0))["N"]) + by)
        after[KEY] = text(write.shard)
        self.items[write.shard] = after
        return Written(True, parse_lease(after))

    @override
    def close(self) -> None:
        return
