"""The shards of a stream with their parents, as Kinesis lists them at one time. Pure.

A split makes two shards of one, a merge one of two. Kinesis lists closed shards until their last record has expired;
parents are older than their children, so they leave the list first. Ids rise: a shard that was created later has a
higher number. That is how a list that is out of date is recognized.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from functools import cached_property

from headrace.systems.kinesis.api import HASH_END, Shard


def age(shard: str) -> tuple[int, str]:
    """A key that sorts ids of shards by when they were created."""
    return len(shard), shard


def home(shard: str, slots: int) -> int:
    """The slot of a shard that follows no other one. It depends on nothing but the id, so everybody agrees on it.

    Shards that were created together have consecutive numbers, so they go to different slots while there are any.
    """
    digits = shard[len(shard.rstrip("0123456789")) :]
    return (int(digits) if digits else zlib.crc32(shard.encode())) % slots


class ShardTree:
    """One list of the shards of a stream."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = {shard.id: shard for shard in sorted(shards, key=lambda shard: age(shard.id))}
        self._children: dict[str, list[str]] = {}
        for shard in self._shards.values():
            for parent in shard.parents:
                self._children.setdefault(parent, []).append(shard.id)

    def __contains__(self, shard: str) -> bool:
        return shard in self._shards

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def ids(self) -> tuple[str, ...]:
        """All shards, the oldest first."""
        return tuple(self._shards)

    def parents(self, shard: str) -> list[str]:
        """Return its parent shards, the oldest first, whether or not they are listed."""
        found = self._shards.get(shard)
        return [] if found is None else sorted(set(found.parents), key=age)

    def children(self, shard: str) -> list[str]:
        """Return its listed children; it needn't be listed itself."""
        return self._children.get(shard, [])

    def is_open(self, shard: str) -> bool:
        """It is listed, and takes records."""
        return shard in self._shards and not self._shards[shard].closed and shard not in self._children

    def ancestors(self, shards: Collection[str]) -> set[str]:
        """Return all known ancestors of these shards, listed or not."""
        found: set[str] = set()
        for id_ in reversed(self.ids):  # children first
            if id_ in shards or id_ in found:
                found.update(self._shards[id_].parents)
        return found

    def is_older_than(self, shards: Iterable[str]) -> bool:
        """Return whether one of these shards is newer than the list, so that their slots know more than the list."""
        newest = max(map(age, shards), default=None)
        return newest is not None and (not self._shards or newest > age(self.ids[-1]))

    @cached_property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """The hashes (first to last) that no listed open shard takes. Empty unless the list is incomplete."""
        found, free = [], 0
        for one in sorted((self._shards[id_] for id_ in self.ids if self.is_open(id_)), key=lambda one: one.first):
            if one.first > free:
                found.append((free, one.first - 1))
            free = max(free, one.last + 1)
        return (*found, (free, HASH_END - 1)) if free < HASH_END else tuple(found)


def ended_before(shards: Iterable[Shard], *, latest: bool) -> frozenset[str]:
    """The shards that ended before an app that sees this list first, and starts then: it has no use for them.

    These are parents that are listed no more, and with ``latest`` all that are closed. Without it, the app reads what
    is left of those.
    """
    tree = ShardTree(shards)
    trimmed = {parent for id_ in tree.ids for parent in tree.parents(id_) if parent not in tree}
    return frozenset(trimmed | {id_ for id_ in tree.ids if latest and not tree.is_open(id_)})
