"""Opens the lease table that an input names."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.clock import Clock
from headrace.core.extras import needing
from headrace.systems.kinesis.leases.mirror import LeaseMirror
from headrace.systems.kinesis.leases.table import LeaseTable


def open_leases(
    name: str, app: str, *, region: str | None, endpoint: str | None, clock: Clock, wait: Callable[[float], bool]
) -> LeaseMirror:
    """Open a table in DynamoDB, and mirror the commits of ``app`` in it. See ``LeaseMirror.open``."""
    return LeaseMirror.open(dynamo_table(name, region=region, endpoint=endpoint, wait=wait), app, clock, wait)


def dynamo_table(name: str, *, region: str | None, endpoint: str | None, wait: Callable[[float], bool]) -> LeaseTable:
    """A table in DynamoDB, which needs boto3 in the driver only."""
    with needing("boto3", "a lease table", "kinesis", "where drivers run"):
        from headrace.systems.kinesis.leases.dynamo import DynamoLeaseTable
    return DynamoLeaseTable(name, region=region, endpoint=endpoint, wait=wait)
