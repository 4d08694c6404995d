"""Where shards begin that no slot holds: in which slot, and at which position. Pure; ``dealing`` says why so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.systems.kinesis.holdings import Holdings
from headrace.systems.kinesis.shard_position import Phase, Position, ShardState
from headrace.systems.kinesis.shard_tree import ShardTree, home


class Beginnings:
    """What follows from a list of shards, from what slots hold, and from what is known without them."""

    def __init__(self, tree: ShardTree, holdings: Holdings, start: Position, known: Mapping[str, ShardState]) -> None:
        self._tree = tree
        self._holdings = holdings
        self._start = start
        self._known = known
        self._held = {shard for shard in holdings if holdings.held(shard)}
        self._followed = tree.ancestors(self._held)
        self._known_to_have_ended = {shard for shard, state in known.items() if state.phase is Phase.DONE}
        self._known_to_have_ended |= tree.ancestors(known.keys()) - known.keys()
        self._settled = not any(self._may_have_lost_children(shard) for shard in self._held)

    def now(self) -> Iterator[tuple[str, int, Position]]:
        """The shards that can begin: each with its slot and the position to read it from."""
        for shard in self._tree.ids:
            parents = self._tree.parents(shard)
            if shard in self._held or self.over(shard) or not all(map(self._out_of_the_way, parents)):
                continue
            if self._settled or not any(map(self._lost, parents)):
                yield shard, self._slot(shard), self._position(shard)

    def over(self, shard: str) -> bool:
        """Whether no slot holds the shard or ever will, because it ended before, and others may have followed it."""
        return shard not in self._held and (shard in self._followed or shard in self._known_to_have_ended)

    def followed(self, shard: str) -> bool:
        """All shards that come from this one are held, or are over. One that is listed and has none may get some."""
        children = self._tree.children(shard)
        return all(child in self._held or self.over(child) for child in children) and (
            bool(children) or shard not in self._tree
        )

    def _out_of_the_way(self, parent: str) -> bool:
        """The parent was read to its end, or never will be."""
        return self._holdings.ended_in(parent) is not None or self.over(parent) or self._lost(parent)

    def _lost(self, parent: str) -> bool:
        """Whether it is unknown if a slot is about to read the parent, or if the parent expired unread."""
        return not (parent in self._tree or parent in self._held or parent in self._known_to_have_ended)

    def _may_have_lost_children(self, shard: str) -> bool:
        """The shard is held but not listed. If a merge of it is, that is its only child."""
        children = self._tree.children(shard)
        return shard not in self._tree and not any(len(self._tree.parents(child)) > 1 for child in children)

    def _slot(self, shard: str) -> int:
        slots = self._holdings.reports
        for parent in self._tree.parents(shard):
            ended_in = self._holdings.ended_in(parent)
            if ended_in is not None:
                return ended_in
            if self._lost(parent):
                return home(parent, len(slots))
        return home(shard, len(slots))

    def _position(self, shard: str) -> Position:
        known = self._known.get(shard)
        return self._start if known is None else known.position
