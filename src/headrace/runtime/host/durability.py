"""What a commit waits for so that it survives what its app wants to survive.

With ``durability="commit"`` that includes a power cut, after which a file may lack whatever wasn't synced.
Three rules keep what is left of the files consistent:

1. Before the record of a commit is appended, what the task has written is on the disk: else the record could survive
   without the results that it covers.
2. So is all that it has read, whoever wrote it: else the record could name a position that its input doesn't reach
   any more, and what is written there next would be skipped.
3. Before anything follows from a commit (its checkpoint is sent, a version is published, the log is trimmed), its
   record is on the disk. That is for whoever goes by it: a task that starts may find a record that another incarnation
   has appended and that isn't on the disk yet. So what precedes its own abort is on the disk before it reads that.

The end of a task is announced by frames that come after its last commit; they are on the disk before it is over.

On the run-loop thread; blocks for the disk. A sync covers all tasks of a container, so that those which commit next
find nothing to wait for but their own records.
"""

from __future__ import annotations

from headrace.api.settings import Durability
from headrace.runtime.connections import Connections
from headrace.runtime.inputs.consumers import InputConsumers


class Survival:
    """Syncs for one task, if its app wants that."""

    def __init__(self, durability: Durability, connections: Connections, inputs: InputConsumers) -> None:
        self._wanted = durability == "commit"
        self._connections = connections
        self._inputs = inputs

    def of_what_is_there(self) -> None:
        """What was sent is acknowledged; this, and what was read, survives from now on."""
        self._connections.flush_records()
        if self._wanted:
            self._connections.sync_records()
            self._inputs.sync()

    def of_the_record(self) -> None:
        """The record of a commit or an abort, which has been acknowledged, survives from now on, with all before it."""
        if self._wanted:
            self._connections.sync_records()
