"""The base of operators at run time, and the parts of its task and plan that an operator can use.

**Provenance.** The origin of the rows that a step processes, computed only if a row must be reported. An operator whose
results each come from one row can say from which (``became``), so a row can be traced back to its message. After others
(a window, a join) it is only known which messages were being processed.

**Operator.** The chain calls ``on_batch`` in the order of the data, and ``on_watermark`` and ``on_end`` in topological
order. An operator hands results on with ``emit`` before it returns, so the order is kept. There is one thread; nothing
may block except a user's function. An operator that waits for calls is ``holding`` rows meanwhile: watermarks queue
after them, and the host commits, and ends, only when none holds anything, so these rows are in no checkpoint.
"""

from __future__ import annotations

from asyncio import CancelledError
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.api.specs import Node
from headrace.core.errors import DataError, UserFunctionError
from headrace.core.ids import SSP, Offset, TaskName
from headrace.rows.casting import beyond, why_beyond
from headrace.rows.schema import Schema
from headrace.stores.base import StateStore
from headrace.task.calls import Calls
from headrace.task.event_time import NEVER
from headrace.task.metrics import TaskMetrics
from headrace.task.scope import AtWork, Done, Placing
from headrace.task.tables import TaskTables

Numbers = Sequence[int] | pl.Series | npt.NDArray[np.int64]
Origins = Callable[[], Numbers]  # for each row that an operator emits the number of the input row that it comes from


@dataclass(frozen=True, slots=True)
class Origin:
    """The offset ``first``, or some offset up to ``last``. ``index`` counts the frame's rows that fit the schema."""

    ssp: SSP
    first: Offset
    last: Offset
    index: int | None = None

    @override
    def __str__(self) -> str:
        if self.first != self.last:
            return f"while messages of {self.ssp}, offsets {self.first} to {self.last}, were processed"
        row = "" if self.index is None else f", row {self.index} of it"
        return f"on a message of {self.ssp}, offset {self.first}{row}"


@dataclass(slots=True, eq=False)
class Arrival:
    """Rows from ``first`` up to, but not including, ``after``. ``offsets`` and ``heights`` are of frames; ``each`` has
    the offsets of single messages, if there are gaps between them."""

    ssp: SSP
    first: Offset
    after: Offset
    rows: int
    offsets: Sequence[Offset] = ()
    heights: Sequence[int] = ()
    shard: str = ""
    each: npt.NDArray[np.int64] | None = None
    _ends: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self._ends = list(accumulate(self.heights))

    @override
    def __str__(self) -> str:
        last = self.after - 1
        return f"{self.ssp}, " + (f"offset {last}" if last <= self.first else f"offsets {self.first} to {last}")

    def place(self, row: int | None) -> Origin:
        if row is not None and self._ends:
            frame = bisect_right(self._ends, row)
            offset = self.offsets[frame]
            return Origin(self.ssp, offset, offset, row - (self._ends[frame - 1] if frame else 0))
        if row is not None and self.each is not None:
            return Origin(self.ssp, int(self.each[row]), int(self.each[row]))
        if row is not None and self.after - self.first == self.rows:
            return Origin(self.ssp, self.first + row, self.first + row)
        return Origin(self.ssp, self.first, self.after - 1)


@dataclass(slots=True, eq=False)
class Passage:
    """The rows that an operator processes, and how its results come from them."""

    rows: pl.DataFrame
    origins: Origins | None = None
    cached: Numbers | None = None  # what ``origins`` has returned

    def origin(self, row: int, handed_on: int) -> int | None:
        if self.cached is None:
            self.cached = () if self.origins is None else self.origins()
        return int(self.cached[row]) if len(self.cached) == handed_on else None


class ProvenanceSnapshot:
    """The provenance at one moment, and the rows of that moment. The last passage is that of the operator that asks."""

    def __init__(self, arrival: Arrival | None, passages: Sequence[Passage]) -> None:
        self._arrival = arrival
        self._passages = tuple(passages)

    def place(self, row: int | None) -> Origin | None:
        if self._arrival is None:
            return None
        for before, after in zip(self._passages[-2::-1], self._passages[:0:-1], strict=True):
            if row is None:
                break
            row = before.origin(row, after.rows.height)
        return self._arrival.place(row)


class Provenance:
    """The operators of one task that are processing rows, the outermost first."""

    def __init__(self) -> None:
        self._arrival: Arrival | None = None
        self._passages: list[Passage] = []
        self._at_work = AtWork()
        self._task = ""

    def report_to(self, at_work: AtWork, task: str) -> None:
        self._at_work, self._task = at_work, task

    def user_call(self, step: str, done: Done | None = None) -> AbstractContextManager[None]:
        return self._at_work.call(self._task, step, "" if self._arrival is None else str(self._arrival), done)

    def arrive(self, arrival: Arrival | None) -> None:
        self._arrival = arrival

    def enter(self, rows: pl.DataFrame) -> None:
        """An operator begins to process rows. What the app's code counts meanwhile, on any thread, is this task's."""
        self._at_work.entered(self._task)
        self._passages.append(Passage(rows))

    def leave(self) -> None:
        self._passages.pop()

    def became(self, origins: Origins) -> None:
        """Each row that is emitted next comes from one input row; ``origins`` returns from which, if called."""
        if self._passages:
            self._passages[-1].origins = origins
            self._passages[-1].cached = None

    def here(self) -> ProvenanceSnapshot:
        return ProvenanceSnapshot(self._arrival, self._passages)


ROWS_A_BATCH = 5


class Tap:
    """Samples batches for a user who peeks, until ``until_ms``. Another thread reads what was ``taken``."""

    def __init__(self, rows: int, until_ms: float, now_ms: Callable[[], float]) -> None:
        self._rows = rows
        self._until_ms = until_ms
        self._now_ms = now_ms
        self.taken: tuple[pl.DataFrame, ...] = ()

    @property
    def missing(self) -> int:
        return self._rows - sum(rows.height for rows in self.taken)

    def take(self, rows: pl.DataFrame) -> bool:
        if self._now_ms() >= self._until_ms or self.missing <= 0:
            return False
        self.taken = (*self.taken, rows.head(min(ROWS_A_BATCH, self.missing)))
        return self.missing > 0


RAISED: tuple[type[BaseException], ...] = (
    Exception,
    SystemExit,
    GeneratorExit,
    CancelledError,
    pl.exceptions.PanicException,
)
"""What counts as an error of the app's own code that raised it. ``sys.exit`` in a function doesn't end a container."""
UNCOMPUTABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # a panic isn't an ``Exception``


class Port(Protocol):
    """Where results leave a task."""

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        """Write rows to the partitions that ``keys`` hash to; without keys to the task's own partition."""


HandOn = Callable[["Operator", pl.DataFrame, Sequence["Operator"], int], None]
"""Hands what an operator emits to some of the operators after it, the first of which has this number among its ways."""


class Operator:
    """Operators after it receive watermarks that are lower by ``delay_ms``, so none of its results is late."""

    delay_ms = 0
    wants_commit = False
    wants_shutdown = False
    tap: Tap | None = None  # set by any thread while a user peeks at its incoming rows

    def __init__(self, node: Node) -> None:
        self.node = node
        self.after: list[Operator] = []
        self.aside: dict[str, list[Operator]] = {}  # by side output the operators that take it
        self.kept: Placing | None = None  # which its results must have unchanged, to belong to ``number``
        self.number = 0
        self.hand_on: HandOn | None = None  # set where flows of one input meet
        self.takes_single = False  # one row at a time: else the places of its results wouldn't be known
        self.ranks: npt.NDArray[np.int64] | None = None  # see ``rank``
        self.emits_single = False  # what it emits goes on one row at a time
        self.provenance = Provenance()  # where the rows that it processes come from; shared by all operators of a task
        self.batches = self.rows = 0
        self.now_ms: int | None = None  # the wall clock; the host sets it at the start of each step

    def receive(self, rows: pl.DataFrame) -> None:
        self.batches += 1
        self.rows += rows.height
        if (tap := self.tap) is not None and not tap.take(rows):
            self.tap = None
        self.provenance.enter(rows)
        try:
            self.on_batch(rows)
        finally:
            self.provenance.leave()

    def begin(self, task: TaskName, watermark: int) -> None:
        """The task begins: its state has been restored as of ``watermark``. Called once, before anything else."""

    def on_batch(self, rows: pl.DataFrame) -> None:
        self.provenance.became(lambda: range(rows.height))
        self.emit(rows)

    def on_watermark(self, watermark: int) -> None:
        """Event time has reached ``watermark``: no older message will arrive, except late ones."""

    def on_time(self, now_ms: int) -> None:
        """The wall clock has reached ``due_ms``; called then or a little later."""

    def due_ms(self) -> int | None:
        return None

    def watermark_after(self, watermark: int) -> int:
        return max(NEVER, watermark - self.delay_ms)

    @property
    def owes(self) -> bool:
        """Whether it keeps messages whose results may be older than those still to come. Asked often."""
        return False

    @property
    def holding(self) -> bool:
        return False

    @property
    def full(self) -> bool:
        return False

    def collect(self) -> bool:
        """Emit what is done, up to the next queued watermark. Return False if there was nothing."""
        return False

    @property
    def trouble(self) -> str | None:
        """Why the results it waits for don't arrive; None if nothing is known to be wrong."""
        return None

    def close(self) -> None:
        """Drop what is held, release what was opened: the task restarts or ends."""

    def committed(self) -> None:
        """What it has done so far is committed. Operators that request something override this."""

    def on_end(self) -> None:
        """The inputs have ended: emit everything that is open."""

    def resume(self, watermark: int) -> None:
        """The stores have been restored from a checkpoint, as of ``watermark``."""

    def side(self, number: int) -> Operator:
        return self

    def rank(self, ranks: npt.NDArray[np.int64] | None) -> None:
        """A meeting gives the ranks of the next batch's rows; None: it is over. Only where any order finds the same."""
        self.ranks = ranks

    def sizes(self) -> Mapping[str, int]:
        return {}

    def stores(self) -> Sequence[StateStore]:
        return ()

    def emit(self, rows: pl.DataFrame) -> None:
        if rows.height:
            if self.kept is not None:
                self.kept.check_results(rows, self.number, self.node)
            if self.hand_on is not None:
                self.hand_on(self, rows, self.after, 0)
                return
            for operator in self.after:
                operator.receive(rows)

    def emit_aside(self, output: str, rows: pl.DataFrame) -> None:
        takers = self.aside.get(output, ())
        if rows.height and takers:
            if self.hand_on is not None:
                names = list(self.aside)
                first = len(self.after) + sum(len(self.aside[name]) for name in names[: names.index(output)])
                self.hand_on(self, rows, takers, first)
                return
            for operator in takers:
                operator.receive(rows)

    @property
    def branches(self) -> int:
        return len(self.after) + sum(map(len, self.aside.values()))

    def user_call(self, done: Done | None = None) -> AbstractContextManager[None]:
        """Status and crash reports name the step. ``done`` changes with each message of a batch."""
        return self.provenance.user_call(self.node.id, done)

    def failed(self, error: BaseException, what: str, where: str = "") -> UserFunctionError:
        return UserFunctionError(
            f"{self.described(what)} raised {type(error).__name__}{where}: {error}{self.at_work_on()}",
            hint="fix it, or filter out such messages before it",
        )

    def check_bounds(self, rows: pl.DataFrame, columns: Iterable[str], what: str) -> None:
        for name in columns:
            column = rows.get_column(name)
            wrong = beyond(column)
            if wrong.size:
                raise UserFunctionError(
                    f"{self.described(what)} returned an unusable value: "
                    f"{why_beyond(column, int(wrong[0]))}{self.at_work_on()}",
                    hint="filter such messages out before this step, or compute null for them",
                )

    def misfitted(self, error: DataError, what: str) -> UserFunctionError:
        return UserFunctionError(
            f"{self.described(what)} doesn't fit its schema: {error.message}{self.at_work_on()}",
            hint=error.hint if error.hint is not None else "fix the function, or declare the schema that it returns",
        )

    def at_work_on(self) -> str:
        place = self.provenance.here().place(None)
        return "" if place is None else f"\n  {place}"

    def described(self, what: str) -> str:
        location = self.node.location
        return f"{what} of operator {self.node.id!r} (declared at {location}: {location.text})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The chain creates one for each node; operators take their dependencies from it."""

    port: Port
    counters: TaskMetrics
    calls: Calls
    tables: TaskTables
    inputs: tuple[Schema, ...]  # the schemas of its inputs
    needed: tuple[str, ...] | None = None  # the columns of its results that others need; None: all
    takes_partials: bool = False  # a window: its input is partial results, made before the shuffle
    target_key: tuple[str, ...] = ()  # of a ``send_to``: by which rows are replaced in what it writes
    partials_of: Node | None = None  # of a ``partition_by``: the window whose partial results it writes
