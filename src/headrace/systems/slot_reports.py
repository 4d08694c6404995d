"""What the tasks and the dealer of a stream of slots tell each other. Commands read it too: it imports little. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

Shards = Mapping[str, str]
"""The shards of a slot with the position in each, in the system's own text form. Part of each commit."""
SlotOrders = Mapping[str, str]
"""Orders to a slot by shard, in the system's own text form. The slot continues with shards that aren't named."""


class SlotReport(msgspec.Struct, frozen=True, rename="camel"):
    """What the present generation of a task says of one of its slots, in the order of its commits, or not at all.

    ``shards`` are those of its last commit that counts, and ``version`` is that commit's; -1 before there is one.
    """

    generation: int
    shards: Shards
    watermark: int | None = None
    behind_ms: Mapping[str, int] = msgspec.field(default_factory=dict)
    version: int = -1
