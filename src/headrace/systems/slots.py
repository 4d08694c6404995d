"""The contracts of a system whose partitions are slots: each reads any number of shards, which come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from headrace.core.ids import SSP
from headrace.systems.base import Consumer, Rows, RowSystem
from headrace.systems.slot_reports import Shards, SlotOrders, SlotReport


@runtime_checkable
class SlotConsumer(Consumer, Protocol):
    """Reads a stream whose partitions are slots: each reads any number of shards, which come and go.

    An offset of a slot counts its rows. How far it has come is said by its ``Shards``: whatever changes in them comes
    as ``Rows``, with rows or without, in its place among the others.
    """

    def take(self, ssp: SSP, shards: Shards) -> Rows:
        """Go on with the shards of the last commit. Called after ``register``, before the first poll.

        If ``register`` was given a moment, all of them are read from there. Return, as ``Rows`` without rows, what a
        commit would say if it came before the first poll.
        """

    def direct(self, ssp: SSP, orders: SlotOrders) -> None:
        """Follow the dealer's orders. They are repeated until they are followed, so each may be known already.

        They come in the order in which they were given, or not at all. A commit has the effects of all before it.
        A slot that has no shards after its first orders hands out ``Rows`` that say so: until then it is waited for.
        """

    def behind_ms(self, ssp: SSP) -> Mapping[str, int]:
        """Return how far behind the newest record each shard is read, as far as it is known."""


class Dealer(Protocol):
    """Deals the shards of a stream to the slots of one stage. In the driver; it may block; one thread uses it.

    It relies on nothing but the commits of tasks: another dealer goes on from the same reports.
    """

    def deal(self, slots: Sequence[SlotReport | None]) -> Sequence[SlotOrders | None]:
        """Return the orders for each slot, of which there may be no report yet.

        None: the slot may still get shards, so nothing is sent to it. Empty orders: it has all that there are for it.
        """

    def close(self) -> None:
        """Release everything. Called once."""


@runtime_checkable
class SlottedSystem(RowSystem, Protocol):
    """A row system whose partitions are slots. Its consumers are ``SlotConsumer``."""

    def dealer(self, stream: str, reader: str) -> Dealer:
        """Return a new dealer for the stage of that name, ``app/stage``."""
