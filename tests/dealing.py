"""How xdist deals tests to processes: a few of one file at a time, and those of a group all to one.

Its own ways cost more than many a test does: it looks for each test in the list of all, and counts all that are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from xdist.scheduler import LoadGroupScheduling

IN_ONE_PROCESS = {
    "Spark": ("tests/spark/", "tests/docs/test_examples.py::test_example_prints_what_it_says[13_on_spark]"),
    "Kafka": (
        "tests/contracts/test_kafka_",
        "tests/local/test_commands_elsewhere.py",
        "tests/local/test_into_kafka.py",
        "tests/local/test_kafka_exactly_once.py",
        "tests/local/test_savepoints_in_kafka.py",
    ),
    "Kinesis": ("tests/contracts/test_kinesis_", "tests/local/test_kinesis_"),
    "databases": (
        "tests/contracts/test_lease_tables.py",
        "tests/contracts/test_object_stores.py",
        "tests/contracts/test_targets.py",
        "tests/local/test_into_postgres.py",
        "tests/local/test_snapshots_in_s3_killed.py",
        "tests/unit/connectors/kinesis/test_kinesis_access.py",
        "tests/unit/connectors/kinesis/test_lease_",
        "tests/unit/connectors/sql/test_postgres_client.py",
        "tests/unit/life/test_metadata_postgres.py",
        "tests/unit/operate/cli/test_metadata_option.py",
    ),
    "tidy": ("tests/tidy/",),
}
"""Two sessions of Spark are too much for a machine with two processors. What starts a server, or reads all files of the
tree, does so in each process that needs it. Those that take longest come first."""

AT_ONCE = 12
"""Few enough for all processes to end at about one time, and enough for few to set up what tests of a file share."""


def group_of(test: str) -> str | None:
    """The group of a test, by its name for pytest."""
    return next((name for name, tests in IN_ONE_PROCESS.items() if test.startswith(tests)), None)


def turn(test: str) -> int:
    """The place of a test among all: groups come first, and then what isn't a unit test, as that takes longer."""
    group = group_of(test)
    if group is not None:
        return list(IN_ONE_PROCESS).index(group)
    return len(IN_ONE_PROCESS) + test.startswith("tests/unit/")


def units(tests: Sequence[str]) -> dict[str, str]:
    """What each test is dealt out with: all of its group, or some that stand beside it in its file."""
    found: dict[str, str] = {}
    for file, of_file in groupby(tests, key=lambda test: group_of(test) or test.partition("::")[0]):
        for number, test in enumerate(of_file):
            found[test] = file if file in IN_ONE_PROCESS else f"{file} {number // AT_ONCE}"
    return found


class Numbered(list[str]):
    """Tests, each of which is found without a look at all others."""

    def __init__(self, tests: Sequence[str]) -> None:
        super().__init__(tests)
        self._numbers = {test: number for number, test in enumerate(tests)}

    def index(self, test: str, *_: Any) -> int:
        return self._numbers[test]


class Dealing(LoadGroupScheduling):  # type: ignore[misc]
    """A scheduler of xdist.

    Marks of groups don't do it: xdist 3.8 writes them into an attribute of tests that pytest 9.2 doesn't read.
    """

    _units: dict[str, str]

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = Numbered(collection)

    def schedule(self) -> None:
        if self.collection is None:
            self._units = units(next(iter(self.registered_collections.values())))
        super().schedule()

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        dealt = self.assigned_work[node]
        unit = self._units[self.registered_collections[node][item_index]]
        if all(dealt[unit].values()):
            del dealt[unit]

    def _split_scope(self, nodeid: str) -> str:
        return self._units[nodeid]
