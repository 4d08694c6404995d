"""Opens the lease table that an input names."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.clock import Clock
from headrace.core.extras import needing
from headrace.systems.kinesis.leases.mirror import LeaseMirror
from headrace.systems.kinesis.leases.table import LeaseTable
from headrace.systems.kinesis.options import FAILOVER_MS, Access


def open_leases(
    name: str,
    app: str,
    access: Access,
    *,
    clock: Clock,
    wait: Callable[[float], bool],
    failover_ms: int = FAILOVER_MS,
) -> LeaseMirror:
    """Open a table in DynamoDB, and mirror the commits of ``app`` in it. See ``LeaseMirror.open``."""
    return LeaseMirror.open(dynamo_table(name, access, wait=wait), app, clock, wait, failover_ms)


def dynamo_table(name: str, access: Access, *, wait: Callable[[float], bool]) -> LeaseTable:
    """A table in DynamoDB, which needs boto3 in the driver only."""
    with needing("boto3", "a lease table", "kinesis", "where drivers run"):
        from headrace.systems.kinesis.leases.dynamo import DynamoLeaseTable
    return DynamoLeaseTable(name, access, wait)
