"""Settings of a whole app."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.home import DEFAULT_HOME
from headrace.core.url import SecretUrl
from headrace.stores.objects.place import ObjectPlace
from headrace.systems.home_log import home_log
from headrace.systems.positions import Customs
from headrace.systems.registry import SystemSpec

Durability = Literal["commit", "process"]
Guarantee = Literal["exactly_once", "at_least_once"]
LostResults = Literal["refuse", "accept"]
Grouping = Literal["partition", "container"]

RESTARTS_MAX = 5
"""How many times in a row a failed container is restarted."""

INTERVAL_MS = 1000
"""The time between two checkpoints."""

DRAIN_TIMEOUT_MS = 60_000
"""How long a drain may take."""

STANDBY_MAX = 3
"""How many standbys a task may have."""

HUNG_AFTER_MS = 600_000
"""How long one call of the app's own code may take, or one turn of a run loop outside of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a whole app, and the only place with their defaults.

    ``timeline`` isn't a user's setting: it comes from the metadata store, and is the one in which the app is running.
    """

    home: str = DEFAULT_HOME
    metadata: SecretUrl | None = None
    """The database with the metadata store; with None, an SQLite file under ``home``."""
    intermediate_partitions: int | None = None
    guarantee: Guarantee = "exactly_once"
    checkpoint_interval_ms: int = INTERVAL_MS
    ahead_bytes_max: int = 64 << 20
    restarts_max: int = RESTARTS_MAX
    durability: Durability = "commit"
    lost_results: LostResults = "refuse"
    drain_timeout_ms: int = DRAIN_TIMEOUT_MS
    hung_after_ms: int | None = HUNG_AFTER_MS
    """None sets no limit."""
    grouping: Grouping = "partition"
    internal: SystemSpec | None = None
    state_on_disk: bool = True
    combine: bool = True
    timeline: int = 1
    snapshots: ObjectPlace | None = None
    """The object store with the snapshots of the tasks; with None, they are in folders under ``home``."""
    standby: int = 0
    """How many copies of each task's state other hosts keep current."""
    snapshot_after_bytes: int | None = None
    """How far a changelog grows between two snapshots, for tools that need many snapshots."""
    peek: bool = False
    """Whether the live page may show messages."""
    startpoints: Customs = ()
    """The app's own kinds of startpoints."""

    def internal_system(self) -> SystemSpec:
        """Where to keep intermediate streams and changelogs; by default in the embedded log under ``home``."""
        return self.internal or home_log(self.home)
