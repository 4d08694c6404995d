"""Low-level tasks as users write them: a class whose methods are called with messages, timers and time.

The contract
============

A task is declared once, with its parameters, and copied: each task of the stage, in whatever container, has an instance
of its own, and a new one whenever it begins anew. What has to survive goes into ``Store``s and timers; attributes
of the instance don't. So does exactly-once: what a call sends, what it writes into stores and which timers it sets
counts together with the position behind its messages, or not at all.

One thread calls the methods of an instance, one after the other:

1. ``init(context)``, when stores and timers have been restored and before anything else.
2. ``process(message, out)`` for each message, or ``process_batch(rows, out)`` for a DataFrame of them, in the
   order of each partition. ``out.input`` says which input they came from. Batches are chance.
3. ``on_timer(timer, out)`` for each timer that is due, in the order of times. Event-time timers fire when the
   watermark has reached them, before it is passed on, so that what is sent with the time of the timer is never late. A
   timer that is set for a time that has come already fires as soon as the batch is done. Processing-time timers fire
   when the clock has reached them, or somewhat later: after a restart those that came due meanwhile.
4. ``on_watermark(watermark, out)`` when event time has risen, after the timers.
5. ``on_end_of_stream(out)`` when all inputs have ended, after all timers: first those of event time, then those of
   processing time, which fire early. Timers that are set by then are dropped and counted (``timers_dropped``): no
   time will come any more.
6. ``close()`` when the instance is needed no more, but for a process that was killed.

What is sent within a call leaves when it has returned, in order for each output, before a watermark that came after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, overload

import polars as pl

from headrace.api.location import Declaring
from headrace.api.rows import SchemaLike
from headrace.core.duration import Duration, to_ms
from headrace.core.errors import DeclarationError, UsageError
from headrace.core.ids import check_id
from headrace.serdes.schema import Schema
from headrace.stores.records import RecordStore

TimerAxis = Literal["event", "processing"]
STORES = "__headrace_stores__"
"""The attribute of an instance that its stores are put into, by the names of their declarations."""


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that fires: its ``key``, the ``time`` (ms) it was set for, its ``name`` and its ``axis``.

    >>> hr.tasks.Timer("ann", 60_000).name
    ''
    """

    key: Any
    time: int
    name: str = ""
    axis: TimerAxis = "event"


class TaskContext(Protocol):
    """What a task may ask and do at any time: ``init`` gets it, and keeps it if it likes."""

    @property
    def task(self) -> str:
        """The name of this task: ``<stage>/<n>``."""
        ...

    @property
    def partition(self) -> int:
        """Its number: it reads this partition of each of its inputs, and all of a broadcast stream."""
        ...

    @property
    def watermark(self) -> int | None:
        """How far event time has come (ms): nothing older will come. None while it isn't known."""
        ...

    @property
    def now_ms(self) -> int:
        """What the wall clock showed when this turn began (ms)."""
        ...

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of this task, shown as ``<id of the step>.<name>``. A restart begins at 0."""
        ...

    def set_timer(self, key: Any, at: int | datetime, *, name: str = "", axis: TimerAxis = "event") -> None:
        """Have ``on_timer`` called at a time (ms since the epoch, or a datetime; naive ones are UTC).

        There is one timer for each key, name and axis: setting it again moves it. A key is a string, an integer,
        bytes, a float, a bool, None, or a tuple of such.
        """
        ...

    def delete_timer(self, key: Any, *, name: str = "", axis: TimerAxis = "event") -> None:
        """Have a timer not fire, if there is one."""
        ...

    def timer_at(self, key: Any, *, name: str = "", axis: TimerAxis = "event") -> int | None:
        """When a timer will fire; None: there is none."""
        ...


class Out(TaskContext, Protocol):
    """The context during a call, with what only a call may do. Good until the call returns."""

    @property
    def input(self) -> str:
        """The name of the input whose messages are being processed; empty in other calls."""
        ...

    def send(self, output: str, rows: Any) -> None:
        """Send a row (a dict, or an instance of the output's dataclass) or a DataFrame of rows to an output."""
        ...

    def commit(self) -> None:
        """Ask for a commit soon after this call instead of at the end of the checkpoint interval.

        At once in a task that follows the clock: one that reads sources only, or any in an at-least-once app. It is
        granted once an interval; asking more often changes nothing. A task behind a ``partition_by`` commits when
        those before it have committed: there asking changes nothing.
        """
        ...

    def shutdown(self) -> None:
        """Ask that the app be drained, as Ctrl-C does: what was processed is committed, and every task ends.

        Messages that are at hand are still processed. The next run goes on from there.
        """
        ...


class Store:
    """Durable state of a ``Task``, declared in its class: records by key.

    ``key`` names the columns of the key and their types, ``value`` those of the record, as a dict or a dataclass. A
    record is forgotten ``ttl`` of the wall clock after it was last put. State is kept under the store's ``id``, which
    is its name in the class unless given; so it outlives a renaming only with one.

    Each task has the records of its own keys: ``partition_by`` them before.

    >>> class Last(hr.tasks.Task):
    ...     seen = hr.tasks.Store(key={"member": pl.String}, value={"at": pl.Int64, "n": pl.Int64}, ttl="7d")
    ...
    ...     def process(self, message, out):
    ...         before = self.seen.get(message["member"]) or {"n": 0}
    ...         self.seen.put(message["member"], {"at": message["ts"], "n": before["n"] + 1})
    """

    def __init__(
        self,
        key: Mapping[str, Any],
        value: SchemaLike,
        *,
        ttl: Duration | None = None,
        id: str | None = None,
    ) -> None:
        with Declaring("Store"):
            self.key = Schema.of(key)
            self.value = Schema.of(value)
            self.ttl_ms = None if ttl is None else to_ms(ttl, "ttl", minimum=1)
            self.id = None if id is None else check_id("id", id)
            both = [name for name in self.key.columns if name in self.value.columns]
            if both:
                raise DeclarationError(
                    f"the column {both[0]!r} is in the key and in the value",
                    hint="leave it out of the value: whoever asks for a record has its key",
                )
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Store: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> RecordStore: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> Store | RecordStore:
        if instance is None:
            return self
        stores: Mapping[str, RecordStore] | None = instance.__dict__.get(STORES)
        if stores is None:
            raise UsageError(
                f"the store {self.name!r} is there only while its task runs", hint="use it in init or in process"
            )
        return stores[self.name]

    def __set__(self, instance: object, value: object) -> None:
        raise UsageError(
            f"{self.name!r} is a store, and can't be set to something else",
            hint=f"write self.{self.name}.put(key, record), or use another name for the attribute",
        )


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """State that a low-level task declares: ``attribute`` is its name in the class."""

    id: str
    attribute: str
    key: Schema
    value: Schema
    ttl_ms: int | None


class Task:
    """Base of low-level tasks: override ``process`` or ``process_batch``, and what else concerns you.

    The module's contract says when each method is called. ``app.task`` puts an instance into an app.

    >>> class Quiet(hr.tasks.Task):
    ...     def __init__(self, after_ms):
    ...         self.after_ms = after_ms
    ...
    ...     def process(self, message, out):
    ...         out.set_timer(message["member"], message["ts"] + self.after_ms)
    ...
    ...     def on_timer(self, timer, out):
    ...         out.send("quiet", {"member": timer.key, "since": timer.time - self.after_ms})
    >>> flows = app.task(
    ...     Quiet(after_ms=60_000),
    ...     inputs={"views": views.partition_by("member", id="members")},
    ...     outputs={"quiet": {"member": pl.String, "since": pl.Int64}},
    ...     id="quiet-members",
    ... )
    >>> flows["quiet"].send_to(app.output("quiet-members-out"))
    """

    def init(self, context: TaskContext) -> None:
        """The task begins: stores and timers are as the last commit left them. Open here what can't be copied."""

    def process(self, message: Any, out: Out) -> None:
        """Process a message: a dict, or an instance of the dataclass that the input's schema was made from."""
        raise NotImplementedError

    def process_batch(self, rows: pl.DataFrame, out: Out) -> None:
        """Process messages as a DataFrame; override this instead of ``process`` for work on columns."""
        raise NotImplementedError

    def on_timer(self, timer: Timer, out: Out) -> None:
        """A timer is due; it is gone by now. It may set others, for times after its own."""
        raise NotImplementedError

    def on_watermark(self, watermark: int, out: Out) -> None:
        """Event time has come to ``watermark`` (ms): nothing older will come."""

    def on_end_of_stream(self, out: Out) -> None:
        """All inputs have ended, and all timers have fired: nothing will come any more."""

    def close(self) -> None:
        """Release what ``init`` opened: the task has ended, or begins anew from its last commit."""


def overrides(task: Task, method: Callable[..., Any]) -> bool:
    """Whether the class of ``task`` has a method of its own in the place of this one of ``Task``."""
    return getattr(type(task), method.__name__) is not method


def stores_of(task: Task) -> dict[str, Store]:
    """The stores that the class of ``task`` declares, by their names in it, in the order of names."""
    names = {name for owner in type(task).__mro__ for name, value in vars(owner).items() if isinstance(value, Store)}
    return {name: store for name in sorted(names) if isinstance(store := getattr(type(task), name), Store)}
