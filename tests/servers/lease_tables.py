"""Lease tables for tests, and a hand in what is in them: in memory, and in the DynamoDB of moto's server."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from itertools import count

from typing_extensions import override

from headrace.connectors.kinesis.api import Access
from headrace.connectors.kinesis.lease_mirror import dynamo_table
from headrace.connectors.kinesis.leases import KEY, Item, LeaseTable
from headrace.connectors.kinesis.memory import MemoryLeaseTable
from servers.moto import MotoServer

_numbers = count(1)


class Leases(ABC):
    """One table's items, whoever wrote them."""

    @abstractmethod
    def table(self) -> LeaseTable:
        """Another client of the table, which may not exist yet."""

    @abstractmethod
    def put(self, item: Item) -> None:
        """Write a whole item, as some other program would."""

    @abstractmethod
    def items(self) -> dict[str, Item]:
        """All items by their keys."""

    def item(self, shard: str) -> dict[str, object]:
        """An item with bare values: sets are sorted, numbers are texts as DynamoDB has them."""
        found = self.items()[shard]
        return {name: sorted(v) if isinstance(v, list) else v for name, value in found.items() for v in value.values()}


class LeasesInMemory(Leases):
    def __init__(self) -> None:
        self._items: dict[str, Item] = {}

    @override
    def table(self) -> LeaseTable:
        return MemoryLeaseTable(self._items)

    @override
    def put(self, item: Item) -> None:
        self._items[item[KEY]["S"]] = item

    @override
    def items(self) -> dict[str, Item]:
        return dict(self._items)


class LeasesInDynamoDB(Leases):
    def __init__(self, server: MotoServer) -> None:
        import boto3

        self._server = server
        self.name = f"leases-{next(_numbers)}"
        self.client = boto3.session.Session().client(
            "dynamodb", region_name=server.region, endpoint_url=server.endpoint
        )

    @override
    def table(self) -> LeaseTable:
        wait = threading.Event().wait
        return dynamo_table(
            self.name, Access(region=self._server.region, endpoint_url=self._server.endpoint), wait=wait
        )

    @override
    def put(self, item: Item) -> None:
        self.client.put_item(TableName=self.name, Item=item)

    @override
    def items(self) -> dict[str, Item]:
        return {item[KEY]["S"]: item for item in self.client.scan(TableName=self.name, ConsistentRead=True)["Items"]}
