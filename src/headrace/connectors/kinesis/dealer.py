"""Deals the shards of a stream to slots, in the driver: ``Dealing`` decides, this asks Kinesis and keeps the leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from headrace.connectors.kinesis.api import DONE, KinesisApi, LeaseAhead, Shard, ShardTree
from headrace.connectors.kinesis.dealing import Dealing
from headrace.connectors.kinesis.lease_mirror import LeaseMirror
from headrace.core.clock import Clock
from headrace.core.errors import DeploymentError, HeadraceError, StreamNotFoundError
from headrace.core.log import Throttle, logger
from headrace.systems.slot_reports import SlotOrders, SlotReport
from headrace.systems.slots import Dealer

LIST_MS, HURRY_MS = 5000, 500  # how old the list may be; and if a shard has ended whose children aren't listed
HURRIES_MAX = 40  # because of one shard: that of a deleted stream has no children
_log = logger(__name__)


class ShardListing:
    """The list of a stream's shards. An old one does no harm: the dealing expects that of any list."""

    def __init__(self, api: KinesisApi, stream: str, clock: Clock) -> None:
        self._api = api
        self._stream = stream
        self._clock = clock
        self._throttle = Throttle(_log)
        self._shards: list[Shard] | None = None
        self._asked_ms = 0.0
        self._hurries: dict[str, int] = {}

    def shards(self, ended: set[str]) -> list[Shard]:
        """The shards. ``ended`` are those read to their end. Raises only if no list is available."""
        now_ms = self._clock.monotonic_ms()
        if self._shards is not None:
            parents = {parent for shard in self._shards for parent in shard.parents}
            hurried = {shard for shard in ended - parents if self._hurries.get(shard, 0) < HURRIES_MAX}
            if now_ms < self._asked_ms + (HURRY_MS if hurried else LIST_MS):
                return self._shards
            self._hurries = {shard: self._hurries.get(shard, 0) + 1 for shard in hurried} | {
                shard: n for shard, n in self._hurries.items() if shard in ended and shard not in hurried
            }
        try:
            shards = self._api.shards()
        except StreamNotFoundError as error:
            if self._shards is None:
                raise
            raise StreamNotFoundError(
                f"the Kinesis stream {self._stream!r} doesn't exist any more: it was deleted while the app was "
                "reading it",
                hint="committed results stay. To read a new stream of this name, give the input another id",
            ) from error
        except HeadraceError as error:
            if self._shards is None or not error.retry:
                raise
            self._throttle.warning("can't list shards; trying again", stream=self._stream, error=error.message)
            shards = self._shards
        self._shards, self._asked_ms = shards, now_ms
        return shards


@dataclass(eq=False)
class KinesisDealer(Dealer):
    """Deals one stream to the slots of one stage.

    ``open_leases`` is called at the first dealing, as it may wait. If another application has continued in the lease
    table, ``lease_ahead`` says what follows; nothing is read before that is decided.
    """

    stream: str
    api: KinesisApi
    dealing: Dealing
    clock: Clock
    open_leases: Callable[[], LeaseMirror] | None = None
    lease_ahead: LeaseAhead = "stop"

    def __post_init__(self) -> None:
        self._listing = ShardListing(self.api, self.stream, self.clock)
        self._mirror: LeaseMirror | None = None
        self._compared = self.open_leases is None  # it is decided what follows from the table
        self._warned: list[str] = []

    @override
    def deal(self, slots: Sequence[SlotReport | None]) -> Sequence[SlotOrders | None]:
        if self._mirror is None and self.open_leases is not None:
            self._mirror = self.open_leases()
        reports = [slot for slot in slots if slot is not None]
        ended = {shard for report in reports for shard, state in report.shards.items() if state == str(DONE)}
        listed = self._listing.shards(ended)
        if not (self._compared or self._compare(listed, slots)):
            return [None] * len(slots)
        orders = self.dealing.deal(listed, slots, int(self.clock.monotonic_ms()))
        for warning in self.dealing.warnings:
            if warning not in self._warned:
                _log.warning(warning, stream=self.stream)
        self._warned = list(self.dealing.warnings)
        if self._mirror is not None and not self.dealing.jumping:
            # Before that the table would go back, and who deals next wouldn't know that there is something to skip.
            self._mirror.follow(slots, listed)
        return orders

    def _compare(self, listed: Sequence[Shard], slots: Sequence[SlotReport | None]) -> bool:
        standing = self.dealing.standing(listed, slots)
        if standing is None or self._mirror is None:
            return False
        self._compared = True
        ahead = self._mirror.ahead(standing, ShardTree(listed))
        if not ahead:
            return True
        shard, state = min(ahead.items())
        table, where = self._mirror.table, f"{shard}: the table says {state}, the app's commits say {standing[shard]}"
        if self.lease_ahead == "stop":
            raise DeploymentError(
                f"lease table {table}: another application has continued since the app stopped. In {len(ahead)} shards "
                f"it has read further than the app: {where}",
                hint='set lease_ahead= in hr.io.kinesis(...): "continue" goes on behind what the other application has '
                'read, which this app then never processes; "repeat" processes it again',
            )
        repeat = self.lease_ahead == "repeat"
        what = "reads its records again" if repeat else "goes on behind that"
        said = f"another application has read further, and the app {what}"
        _log.warning(said, table=table, shards=len(ahead), first=where)
        if not repeat:
            self.dealing.go_on(standing, ahead)
        return True

    @override
    def close(self) -> None:
        try:
            if self._mirror is not None:
                self._mirror.close()
        finally:
            self.api.close()
