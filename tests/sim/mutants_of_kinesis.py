"""Mistakes with shards: when they are begun, moved, released and forgotten, and what is said of them meanwhile."""

from __future__ import annotations

from mutant_kit import mutant, nothing, yes

from headrace.connectors.kinesis.api import Phase, Position
from headrace.connectors.kinesis.dealing import Beginnings, Holdings
from headrace.connectors.kinesis.feed import Feed
from headrace.connectors.kinesis.records import Fetched
from headrace.connectors.kinesis.slot import Slot
from headrace.systems.slots import SlotConsumer
from headrace.task.event_time import PartitionTime
from headrace.task.host.orders import Slots
from headrace.task.host.task_host import TaskHost
from simulator.declared import CASES
from simulator.run import Parts

SHAPES = tuple(name for name, case in CASES.items() if case.slotted)


def patched(name: str, says: str, owner, method: str, value, first_seed: int = 1) -> None:
    mutant(name, says, Parts(), *SHAPES, first_seed=first_seed, patches=((owner, method, value),))


# -- dealing ------------------------------------------------------------------------------------------------

patched(
    "children before their parents",
    "a shard is begun before its parents are read to their ends",
    Beginnings,
    "_out_of_the_way",
    yes,
)
patched(
    "parents are forgotten",
    "a shard that is done is dropped before its children have begun",
    Beginnings,
    "followed",
    yes,
)


def arrived_when_expected(self, shard, released):
    return self.state(shard, released.to) is not None


patched(
    "released and forgotten",
    "a released shard is dropped before the next slot reads it",
    Holdings,
    "arrived",
    arrived_when_expected,
)

# -- the consumer -------------------------------------------------------------------------------------------


def read_released(self):
    read = (Phase.READING, Phase.RELEASED)
    return ((shard, state.position) for shard, state in self._states.items() if state.phase in read)


patched(
    "released and read on",
    "a slot goes on with a shard that it has released",
    Slot,
    "read",
    read_released,
    first_seed=2,
)
patched(
    "no place in an aggregate",
    "a position is always after a whole record",
    Fetched,
    "position_after",
    lambda self, rows: self.end if rows == len(self) else Position(self.sequences[rows - 1]),
)

ADD = Feed._add


def add_without_moving(self, fetched):
    position = self._position
    ADD(self, fetched)
    self._position = position


patched(
    "iterators begin again",
    "an iterator that expires is replaced by one from where reading began",
    Feed,
    "_add",
    add_without_moving,
    first_seed=7,
)

# -- the host -----------------------------------------------------------------------------------------------

patched("no report", "no commit is reported, only where the task began", Slots, "committed", nothing, first_seed=16)


class CommitsWhatIsPolled(TaskHost):
    """The shards in a commit are as they were when the last rows were polled."""

    def poll(self):
        super().poll()
        for consumer in self.inputs._consumers.values():
            for ssp, reading in consumer._readings.items() if isinstance(consumer, SlotConsumer) else ():
                if ssp in self.receiver.shards:
                    self.receiver.shards[ssp] = dict(reading.slot._texts)


mutant(
    "polled, not processed",
    "a commit has the positions of what was polled",
    Parts(host=CommitsWhatIsPolled),
    *SHAPES,
    first_seed=17,
)

HAS_SHARDS = PartitionTime.has_shards


def has_what_it_reads(self, shards, holding=()):
    HAS_SHARDS(self, [shard for shard in shards if shard not in holding])


patched(
    "event time runs ahead",
    "nobody waits for shards that are expected, nor for the children of those that are done",
    PartitionTime,
    "has_shards",
    has_what_it_reads,
)
