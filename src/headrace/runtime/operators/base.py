"""What an operator is at run time, and what it may ask of its task.

The chain calls ``on_batch`` in the order of the data, ``on_watermark`` and ``on_end`` on all operators in
topological order. An operator hands results on with ``emit``, before it returns: nothing overtakes anything.
One thread; nothing here may block, but for a user's function that does.

An operator that waits for others (calls into services) keeps rows meanwhile: it is ``holding``. Watermarks that it was
told of stand in line behind the rows, ``watermark_behind`` says which one has come through, and ``collect`` lets out
what is done. The host commits, and ends, only when nobody holds anything, so no checkpoint has to know of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import polars as pl

from headrace.api.specs import Node
from headrace.core.errors import DataError, UserFunctionError
from headrace.core.ids import TaskName
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.operators.provenance import Provenance
from headrace.stores.base import StateStore


class Port(Protocol):
    """Where results leave a task."""

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        """Write rows to the partitions that ``keys`` hash to; without keys to the task's own partition."""
        ...


class Counters(Protocol):
    """Where an operator counts what would otherwise go unseen."""

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of the task."""
        ...


class Operator:
    """An operator in its place; subclasses override what concerns them.

    ``delay_ms``: how far below the watermark the event time of what it emits can be. Operators behind it, in this task
    and downstream, get their watermarks later by so much, and nothing of it is late.
    """

    delay_ms = 0

    def __init__(self, node: Node) -> None:
        self.node = node
        self.after: list[Operator] = []
        self.aside: dict[str, list[Operator]] = {}
        """Who takes what it hands out besides its result, by the name of the side output."""
        self.provenance = Provenance()
        """Where the rows come from that it is at work on; one for all operators of a task."""
        self.batches = 0
        self.rows = 0
        self.now_ms: int | None = None
        """What the wall clock showed when the host last looked: at the start of each step."""

    def receive(self, rows: pl.DataFrame) -> None:
        """Take rows from an operator before this one (or from the task)."""
        self.batches += 1
        self.rows += rows.height
        self.provenance.enter(rows)
        try:
            self.on_batch(rows)
        finally:
            self.provenance.leave()

    def begin(self, task: TaskName, watermark: int) -> None:
        """The task begins: its state has been restored, event time had come to ``watermark``. Once, before all else."""

    def on_batch(self, rows: pl.DataFrame) -> None:
        """Process rows; never called with none."""
        self.provenance.became(lambda: range(rows.height))
        self.emit(rows)

    def on_watermark(self, watermark: int) -> None:
        """Event time has come to ``watermark``: nothing older will come."""

    def on_time(self, now_ms: int) -> None:
        """The wall clock shows ``now_ms``; called when ``due_ms`` has come, or somewhat later."""

    def due_ms(self) -> int | None:
        """When (wall clock) ``on_time`` has something to do; None: never."""
        return None

    def watermark_behind(self, watermark: int) -> int:
        """How far event time has come for those behind it, when it has come to ``watermark`` here."""
        return max(NEVER, watermark - self.delay_ms)

    # -- for operators that wait for others

    @property
    def holding(self) -> bool:
        """It has taken rows whose results are still to come."""
        return False

    @property
    def full(self) -> bool:
        """It holds as much as it may: it should be given nothing until something has come out."""
        return False

    def collect(self) -> bool:
        """Let out what is done, up to the next watermark that stands in line; False when nothing was."""
        return False

    @property
    def trouble(self) -> str | None:
        """Why what it waits for doesn't come; None when nothing is known to be wrong."""
        return None

    def close(self) -> None:
        """Drop what is held, release what was opened: the task restarts or ends."""

    # -- for operators with requests to their host

    @property
    def wants_commit(self) -> bool:
        """It asks for a commit of what it has done."""
        return False

    @property
    def wants_shutdown(self) -> bool:
        """It asks for the app to be drained."""
        return False

    def committed(self) -> None:
        """What it has done so far is committed. Operators that request something override this."""

    # -- for all

    def on_end(self) -> None:
        """Nothing will come any more. What is open has to leave now."""

    def resume(self, watermark: int) -> None:
        """The stores have been filled from a checkpoint; event time had come to ``watermark`` then."""

    def side(self, number: int) -> Operator:
        """Who takes the rows of the n-th input: the operator itself, unless it has to tell its inputs apart."""
        return self

    def sizes(self) -> Mapping[str, int]:
        """About how many rows each store has that can be asked about; for status."""
        return {}

    def stores(self) -> Sequence[StateStore]:
        """The state this operator keeps, for checkpoints."""
        return ()

    def emit(self, rows: pl.DataFrame) -> None:
        """Hand rows on to every operator after this one."""
        if rows.height:
            for operator in self.after:
                operator.receive(rows)

    def emit_aside(self, output: str, rows: pl.DataFrame) -> None:
        """Hand rows to whoever takes this side output."""
        if rows.height:
            for operator in self.aside.get(output, ()):
                operator.receive(rows)

    def failed(self, error: BaseException, what: str, where: str = "") -> UserFunctionError:
        """The error to raise when the user's part of this operator raised."""
        return UserFunctionError(
            f"{self.described(what)} raised {type(error).__name__}{where}: {error}{self.at_work_on()}",
            hint="mend it, or filter such messages out before it",
        )

    def misfitted(self, error: DataError, what: str) -> UserFunctionError:
        """The error to raise when what the user's part returned doesn't have the declared columns."""
        return UserFunctionError(
            f"{self.described(what)} doesn't fit its schema: {error.message}{self.at_work_on()}",
            hint=error.hint if error.hint is not None else "mend the function, or declare the schema that it returns",
        )

    def at_work_on(self) -> str:
        """Which messages are being processed, as a line to add to an error; empty when none are."""
        place = self.provenance.here().place(None)
        return "" if place is None else f"\n  {place}"

    def described(self, what: str) -> str:
        """A part of this operator, as errors name it."""
        location = self.node.location
        return f"{what} of operator {self.node.id!r} (declared at {location}: {location.text})"
