"""Low-level tasks: users write a class, whose methods Headrace calls with messages, timers and time; and metrics.

``docs/low-level-tasks.md`` says when each method is called, always by one thread. The rows that a call sends, its
writes to stores and its timers are committed together with the position after its messages, or not at all. Rows are
emitted when the call has returned, in order for each output, before any later watermark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copyreg import __newobj__  # type: ignore[attr-defined]
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, final, overload

import polars as pl
from typing_extensions import override

from headrace.api.checks import Declaring, SchemaLike
from headrace.core.clock import Duration, to_ms
from headrace.core.errors import DeclarationError, UsageError
from headrace.core.ids import check_id
from headrace.core.metrics import SECONDS, Cell, Kind, entered
from headrace.rows.schema import Schema
from headrace.stores.records import RecordStore

TimerAxis = Literal["event", "processing"]
STORES = "__headrace_stores__"
"""The attribute of an instance that has its stores as attributes, by the names of their declarations."""


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that fires: its ``key``, ``name`` and ``axis`` as it was set, and its ``time`` in ms since the epoch.

    Examples
    --------
    >>> hr.tasks.Timer("ann", 60_000).name
    ''
    """

    key: Any
    time: int
    name: str = ""
    axis: TimerAxis = "event"


class Records(Protocol):
    """A table as a low-level task uses it: rows as records under keys, as in a ``Store``. Writes need ``writes=``."""

    def get(self, key: Any) -> Any:
        """The record of a key, without the key's columns; None if there is no row."""

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """The record of each key, or None."""

    def __contains__(self, key: object) -> bool: ...

    def items(
        self, prefix: Any = None, *, start: Any = None, stop: Any = None, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Yield keys and records, in key order or reversed."""

    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        """The other columns for each row of ``keys``; null for keys without a row."""

    def put(self, key: Any, record: Any) -> None:
        """Set the record of a key."""

    def delete(self, key: Any) -> None:
        """Delete a key, if it exists."""

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Set rows; of equal keys the last one counts."""

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Delete the row of each key, if there is one."""


class TaskContext(Protocol):
    """The task's methods for use at any time. ``init`` gets the context and may keep it."""

    @property
    def tables(self) -> Mapping[str, Records]:
        """The tables that the task was declared with, by name."""

    @property
    def task(self) -> str:
        """The name of this task: ``<stage>/<n>``."""

    @property
    def partition(self) -> int:
        """The number of this task: it reads this partition of each input, and all partitions of a broadcast stream."""

    @property
    def watermark(self) -> int | None:
        """The event time (ms) up to which all messages have arrived; None while it is unknown."""

    @property
    def now_ms(self) -> int:
        """The wall clock (ms) at the beginning of this turn of the run loop."""

    def set_timer(self, key: Any, at: int | datetime, *, name: str = "", axis: TimerAxis = "event") -> None:
        """Set a timer: ``on_timer`` is called at its time.

        Together ``key``, ``name`` and ``axis`` (``"event"`` or ``"processing"`` time) identify a timer; setting it
        again moves it. A key is a string, an integer, bytes, a float, a bool, None, or a tuple of these. ``at`` is in
        milliseconds since the epoch, or a datetime; a naive one is UTC.
        """

    def delete_timer(self, key: Any, *, name: str = "", axis: TimerAxis = "event") -> None:
        """Cancel the timer of this ``key``, ``name`` and ``axis``, if there is one."""

    def timer_at(self, key: Any, *, name: str = "", axis: TimerAxis = "event") -> int | None:
        """The time (ms) of the timer of this ``key``, ``name`` and ``axis``, or None if it isn't set."""


class Out(TaskContext, Protocol):
    """The context during a call, with methods that only work in a call. Valid until the call returns."""

    @property
    def input(self) -> str:
        """The name of the input whose messages are being processed; empty in other calls."""

    def send(self, output: str, rows: Any) -> None:
        """Send ``rows`` to an ``output``: a dict, an instance of the output's dataclass, or a DataFrame."""

    def commit(self) -> None:
        """Ask for a commit soon after this call, ahead of the checkpoint interval.

        It works only in tasks that read nothing but sources, and in at-least-once apps, at most once per interval. A
        task after a ``partition_by`` commits when the tasks before it have committed.
        """

    def shutdown(self) -> None:
        """Ask to drain the app, as Ctrl-C does: tasks commit processed messages and end. The next run goes on there."""


class _NotRunning:
    """The stores of an instance whose task doesn't run."""

    def __getattr__(self, name: str) -> RecordStore:
        raise UsageError(f"the store {name!r} exists only while its task runs", hint="use it in init or in process")


class Store(property):
    """Durable state of a ``Task``: records by key, declared in the task's class.

    ``key`` has the columns of the key and their types, ``value`` those of the record: a dict of types, or a dataclass.
    A record is kept for ``ttl`` of the wall clock after it was last written, by default forever. The state is kept
    under the name ``id``, by default the store's name in the class; set it to rename the attribute. Each task holds the
    records of its own keys, so ``partition_by`` the key first.

    Examples
    --------
    >>> class Last(hr.tasks.Task):
    ...     seen = hr.tasks.Store(key={"member": pl.String}, value={"at": pl.Datetime("ms")}, ttl="7d")
    ...
    ...     def process(self, message, out):
    ...         if self.seen.get(message["member"]) is None:
    ...             self.seen.put(message["member"], {"at": message["ts"]})
    """

    def __init__(
        self, key: Mapping[str, Any], value: SchemaLike, *, ttl: Duration | None = None, id: str | None = None
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
                    hint="leave it out of the value: a caller that asks for a record knows its key",
                )
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name
        self._look_up()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return __newobj__, (type(self),), vars(self)  # a property can't be pickled

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._look_up()

    def _look_up(self) -> None:
        # A property, and an attrgetter, because a __get__ in Python would take a tenth of the time of a message.
        super().__init__(attrgetter(f"{STORES}.{self.name}"), self._refuse, doc=type(self).__doc__)

    if TYPE_CHECKING:

        @overload
        @override
        def __get__(self, instance: None, owner: type | None = None) -> Store: ...

        @overload
        def __get__(self, instance: object, owner: type | None = None) -> RecordStore: ...

        def __get__(self, instance: object | None, owner: type | None = None) -> Store | RecordStore: ...

    def _refuse(self, instance: object, value: object) -> None:
        raise UsageError(
            f"{self.name!r} is a store, and can't be set to something else",
            hint=f"write self.{self.name}.put(key, record), or use another name for the attribute",
        )


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """State that a low-level task declares; ``attribute`` is the store's name in the class."""

    id: str
    attribute: str
    key: Schema
    value: Schema
    ttl_ms: int | None


class Task:
    """Base class of low-level tasks: override ``process`` or ``process_batch``, and other methods as needed.

    ``app.task`` and ``Stream.process`` add an instance to an app. The page "Low-level tasks" says when each method is
    called.

    Examples
    --------
    >>> from datetime import timedelta
    >>> class Quiet(hr.tasks.Task):
    ...     def process(self, message, out):
    ...         out.set_timer(message["member"], message["ts"] + timedelta(minutes=1))
    ...
    ...     def on_timer(self, timer, out):
    ...         out.send("quiet", {"member": timer.key, "at": timer.time})
    >>> by_member = views.partition_by("member", id="members")
    >>> flows = by_member.process(Quiet(), {"quiet": {"member": pl.String, "at": pl.Int64}}, id="quiet-members")
    >>> flows["quiet"].send_to("quiet-members-out")
    """

    locals()[STORES] = _NotRunning()

    version: ClassVar[str] = ""
    """Change it when the contents of the class's stores and timers get another meaning. The app then starts only if you
    allow it to drop the old state."""

    def init(self, context: TaskContext) -> None:
        """Start, as of the last commit. Open connections here. The ``context`` may be kept and used at any time."""

    def process(self, message: Any, out: Out) -> None:
        """Process a ``message``: a dict, or an instance of the input's dataclass. ``out`` sends rows, sets timers."""
        raise NotImplementedError

    def process_batch(self, rows: pl.DataFrame, out: Out) -> None:
        """Process ``rows``: a batch of any size of one input. Override it in place of ``process``; ``out`` is alike."""
        raise NotImplementedError

    def on_timer(self, timer: Timer, out: Out) -> None:
        """Handle a ``timer`` that is due, and no longer set. New ones may be set, by ``out``, for later times."""
        raise NotImplementedError

    def on_watermark(self, watermark: int, out: Out) -> None:
        """Handle progress of event time: all messages up to ``watermark`` (ms) have arrived. ``out`` sends rows."""

    def on_end_of_stream(self, out: Out) -> None:
        """Handle the end, after all inputs have ended and all timers have fired. ``out`` sends the last rows."""

    def close(self) -> None:
        """Release what ``init`` opened, because the task has ended or restarts from its last commit."""


def overrides(task: Task, method: Callable[..., Any]) -> bool:
    """Whether the class of ``task`` overrides this method of ``Task``."""
    return getattr(type(task), method.__name__) is not method


def stores_of(task: Task) -> dict[str, Store]:
    """The stores that the class of ``task`` declares, by their names in it, sorted by name."""
    names = {name for owner in type(task).__mro__ for name, value in vars(owner).items() if isinstance(value, Store)}
    return {name: store for name in sorted(names) if isinstance(store := getattr(type(task), name), Store)}


# -- metrics -----------------------------------------------------------------------------------------
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")
_TAKEN = frozenset({"app", "stage", "task", "container", "le", "name", "kind", "value", "buckets"})
_BUCKETS_MAX = 50


class _Metric:
    __slots__ = ("_like",)

    def __init__(self, name: str, kind: Kind, text: str, bounds: Sequence[float] = ()) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("headrace_"):
            raise DeclarationError(
                f"{name!r} is not a valid metric name",
                hint='use letters, digits and "_", up to 100, as in "slow_views"; "headrace_" is for Headrace\'s own',
            )
        if kind == "counter" and not name.endswith("_total"):
            name += "_total"  # Prometheus's convention for counters
        self._like = Cell(name, kind, text or "A metric of the app's own.", {}, tuple(bounds))

    @property
    def name(self) -> str:
        """The name in ``/metrics``; a counter's ends with ``_total``."""
        return self._like.name

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


@final
class Counter(_Metric):
    """A number that only grows, from ``hr.metrics.counter``."""

    __slots__ = ()

    def add(self, by: float = 1, **labels: object) -> None:
        """Add ``by``, which must not be negative, to the counter. Does nothing outside a running app.

        ``labels`` are such as ``country="PT"``. Each combination is a separate series, so keep their number small.
        """
        if (metrics := entered()) is not None:
            if not 0 <= by < math.inf:
                raise UsageError(
                    f"{self.name}: a counter only grows, so it can't be increased by {by!r}", hint="use a gauge"
                )
            metrics.record(self._like, _checked(labels), by)


@final
class Gauge(_Metric):
    """A number that goes up and down, from ``hr.metrics.gauge``."""

    __slots__ = ()

    def set(self, value: float, **labels: object) -> None:
        """Set the gauge to ``value``, with ``labels`` as for ``Counter.add``. Does nothing outside a running app."""
        if (metrics := entered()) is not None:
            metrics.record(self._like, _checked(labels), value)


@final
class Histogram(_Metric):
    """The number of values in each range, and their sum, from ``hr.metrics.histogram``."""

    __slots__ = ()

    def observe(self, value: float, **labels: object) -> None:
        """Count ``value``, with ``labels`` as for ``Counter.add``. Does nothing outside a running app."""
        if (metrics := entered()) is not None:
            metrics.record(self._like, _checked(labels), value)


def counter(name: str, help: str = "") -> Counter:
    """Declare a counter of this ``name`` for functions and low-level tasks; ``help`` describes it in ``/metrics``.

    Its name there ends with ``_total``. Repeated declarations of a name mean the same counter.

    Examples
    --------
    >>> slow = hr.metrics.counter("slow_views", "Views that took over a second.")
    >>> def seconds(row):
    ...     if row["ms"] > 1000:
    ...         slow.add()
    ...     return {"seconds": row["ms"] / 1000}
    >>> views.map(seconds, schema={"seconds": pl.Float64})
    Stream('map-1': seconds Float64)
    """
    return Counter(name, "counter", help)


def gauge(name: str, help: str = "") -> Gauge:
    """Declare a gauge of this ``name`` for functions and low-level tasks; ``help`` describes it in ``/metrics``.

    Examples
    --------
    >>> rules = hr.metrics.gauge("rules_loaded", "Rules that the model has.")
    >>> rules.set(12)
    """
    return Gauge(name, "gauge", help)


def histogram(name: str, help: str = "", *, buckets: Sequence[float] = SECONDS) -> Histogram:
    """Declare a histogram of this ``name`` for functions and low-level tasks; ``help`` describes it in ``/metrics``.

    ``buckets`` are rising upper bounds; one more bucket takes all higher values. The default suits seconds, from 1 ms
    to a minute.

    Examples
    --------
    >>> hr.metrics.histogram("basket_euros", "What a basket is worth.", buckets=[1, 10, 100, 1000])
    Histogram('basket_euros')
    """
    bounds = tuple(buckets)
    rising = all(low < high for low, high in pairwise(bounds))
    if not 0 < len(bounds) <= _BUCKETS_MAX or not rising or not all(map(math.isfinite, bounds)):
        raise DeclarationError(
            f"histogram: buckets={list(bounds)!r} aren't rising numbers, up to {_BUCKETS_MAX}",
            hint="write their upper bounds, as in buckets=[1, 10, 100]",
        )
    return Histogram(name, "histogram", help, bounds)


def _checked(labels: dict[str, object]) -> dict[str, object]:
    if labels and not _TAKEN.isdisjoint(labels):
        raise UsageError(
            f"the labels {', '.join(sorted(_TAKEN & labels.keys()))} have a meaning of their own",
            hint="give yours other names",
        )
    return labels
