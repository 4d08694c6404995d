"""Event time: watermarks, idle inputs, ends, and time columns.

**Columns.** Operators reckon in whole milliseconds, and watermarks and the bounds of windows are such. What compares
times of messages with each other must look at the rest, too.

**Limits.** Event times are in the years 1000 to 8999, so time plus a window's size still fits into 64 bits, and into
Python's ``datetime``. Marks such as 0001-01-01 (never), 9999-12-31 (forever) and -2^63 (not a time) are outside: as
event times they would close every window, or be late for all. A ``Datetime`` of nanoseconds holds only 1677 to 2262.

**Watermark.** One rule, ``combined``, applies at every level: the tasks that write a partition, the partitions of an
input stream, the inputs of an operator, the operators that write a stream. A watermark W means that no message older
than W will arrive. It never decreases, and parts that have ended or are idle don't hold it back. Pure, saved and
restored with checkpoints.

**Idleness starts at a source, and travels.** A task is idle if it hears only of idle sources and keeps nothing that a
later watermark would emit. When a source wakes, the news reaches the tasks behind it one after the other. The first to
hear goes on, and its readers must not follow it before the others have heard: what they will emit isn't late. So each
progress says what it has ``heard`` of the sources behind it. An idle part isn't waited for only while all parts have
heard the same of the sources that they share. If not, the news is on its way, so the wait is short.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.api.operators.spec import EventTime
from headrace.core.errors import DataError, ProtocolError
from headrace.core.files import UNREADABLE
from headrace.core.ids import SSP, TaskName
from headrace.rows.casting import filled

# -- columns -----------------------------------------------------------------------------------------
PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


def time_ms(event_time: EventTime, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(event_time.column)
    if isinstance(dtype, pl.Datetime):
        column = column.dt.timestamp("ms")
    elif dtype != pl.Int64:
        column = column.cast(pl.Int64)
    return column + event_time.offset_ms if event_time.offset_ms else column


def is_time_ms(event_time: EventTime, dtype: pl.DataType) -> bool:
    return dtype == pl.Int64 and not event_time.offset_ms


def is_whole_ms(dtype: pl.DataType) -> bool:
    return not isinstance(dtype, pl.Datetime) or dtype.time_unit == "ms"


def rest_ns(times: pl.Series) -> npt.NDArray[np.int64]:
    """How far (ns) times are beyond their ms, which lies before them even if they are before 1970; 0 for a null."""
    numbers: npt.NDArray[np.int64] = filled(times.cast(pl.Int64), 0).to_numpy()
    per_ms = PER_MS[times.dtype.time_unit] if isinstance(times.dtype, pl.Datetime) else 1
    return numbers % per_ms * (PER_MS["ns"] // per_ms)


def from_ms(column: str, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.Datetime):
        moment = pl.col(column).cast(pl.Datetime("ms"))
        if dtype.time_zone is not None:
            moment = moment.dt.replace_time_zone("UTC").dt.convert_time_zone(dtype.time_zone)
        return moment.dt.cast_time_unit(dtype.time_unit)
    return pl.col(column).cast(dtype)


# -- limits ------------------------------------------------------------------------------------------
_UNITS = {"seconds": 1 / 1000, "microseconds": 1_000, "nanoseconds": 1_000_000}


def _year_ms(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 1000


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS = {"ms": (1000, 8999), "us": (1000, 8999), "ns": (1679, 2260)}
_BOUNDS = {
    unit: (_year_ms(first) * PER_MS[unit], _year_ms(last + 1) * PER_MS[unit]) for unit, (first, last) in _YEARS.items()
}
_RECENT_MS = _year_ms(2001), _year_ms(2101)  # if a number falls into it in another unit, that is probably its unit


def not_times(column: pl.Series) -> pl.Series | None:
    numbers, (earliest, end) = _numbers(column), _BOUNDS[_unit(column.dtype)]
    lowest, highest = numbers.min(), numbers.max()
    if not isinstance(lowest, int) or not isinstance(highest, int):
        return column.is_null() if column.len() else None
    if earliest <= lowest and highest < end:
        return column.is_null() if column.null_count() else None
    early = numbers < (max(earliest, 0) if numbers.dtype.is_unsigned_integer() else earliest)
    return (early | (numbers >= end)).fill_null(value=True)


def why_no_times(column: pl.Series, wrong: pl.Series) -> str:
    value = column.filter(wrong).head(1)
    if value.null_count():
        return f"{column.name!r} is null"
    dtype, number = column.dtype, _numbers(value).item()
    first, last = _YEARS[_unit(dtype)]
    shown = _moment(number, dtype) if isinstance(dtype, pl.Datetime) else f"{number}{_perhaps(number)}"
    return f"{column.name!r} is {shown}, but event times must be in the years {first} to {last}"


def looks_like_seconds(column: pl.Series) -> str | None:
    lowest, highest = column.min(), column.max()
    if not isinstance(lowest, int) or not isinstance(highest, int):
        return None
    if _unit_of(lowest) != "seconds" or _unit_of(highest) != "seconds":
        return None
    as_ms = datetime.fromtimestamp(lowest / 1000, UTC)
    return (
        f"column {column.name!r} seems to hold seconds, and event time is in milliseconds: "
        f"{lowest} means {as_ms:%Y-%m-%d}{_perhaps(lowest)}; multiply it by 1000 where the rows are written"
    )


class StepTime:
    """The event time of the messages that a step takes; ``step`` is how errors name it."""

    def __init__(self, step: str, time: EventTime, dtype: pl.DataType) -> None:
        self._step = step
        self._column = time.column
        self._of_windows = time.offset_ms != 0
        self._is_time = is_time_ms(time, dtype)
        self._expr = time_ms(time, dtype)

    def of(self, rows: pl.DataFrame) -> pl.Series:
        self.check(rows)
        if self._is_time:  # an expression on a small batch takes ten times as long
            return rows.get_column(self._column)
        return rows.select(self._expr).to_series()

    def added(self, rows: pl.DataFrame, name: str) -> pl.DataFrame:
        return rows.hstack([self.of(rows).alias(name)])

    def check(self, rows: pl.DataFrame) -> None:
        column = rows.get_column(self._column)
        # A window's end follows from times that have been checked, and may be a little after the range.
        wrong = column.is_null() if self._of_windows else not_times(column)
        if wrong is None or not wrong.any():
            return
        raise DataError(
            f"{self._step} got messages without an event time ({wrong.sum()} of {rows.height}): "
            f"{why_no_times(column, wrong)}",
            hint="filter them out before it, or give them a time",
        )


def _numbers(column: pl.Series) -> pl.Series:
    return column.cast(pl.Int64) if isinstance(column.dtype, pl.Datetime) else column


def _unit(dtype: pl.DataType) -> str:
    return dtype.time_unit if isinstance(dtype, pl.Datetime) else "ms"


def _unit_of(number: int) -> str | None:
    for unit, per_ms in _UNITS.items():
        if _RECENT_MS[0] <= number / per_ms < _RECENT_MS[1]:
            return unit
    return None


def _perhaps(number: int) -> str:
    unit = _unit_of(number)
    if unit is None:
        return ""
    return f" (in {unit} it is {datetime.fromtimestamp(number / _UNITS[unit] / 1000, UTC):%Y-%m-%d})"


def _moment(number: int, dtype: pl.Datetime) -> str:
    """A ``Datetime`` as text. Polars writes no date beyond its calendar, and Python none beyond the year 9999."""
    try:
        moment = _EPOCH + timedelta(seconds=number // (PER_MS[dtype.time_unit] * 1000))
    except OverflowError:
        return f"{number} {dtype.time_unit} since 1970"
    return moment.replace(tzinfo=None).isoformat(sep=" ")


# -- watermark ---------------------------------------------------------------------------------------
NEVER = -(2**63)  # no watermark yet
FOREVER = 2**63 - 1  # later than any event time
TIMES_FORMAT = 4
AWAKE, OVER = None, FOREVER  # known of a source instead of the watermark with which it is idle: it isn't, or has ended
Heard = Mapping[str, int | None]  # what is known of sources that can fall idle, by their ids
NOTHING_HEARD: Heard = {}


class Progress(NamedTuple):
    """``heard`` is of the sources of which all tasks of the stage hear alike, through intermediate streams, ``own`` of
    the source partitions that only this task reads. What is idle promises nothing."""

    watermark: int = NEVER
    idle: bool = False
    ended: bool = False
    heard: Heard = NOTHING_HEARD
    own: Heard = NOTHING_HEARD

    def woken(self) -> Progress:
        heard, own = dict.fromkeys(self.heard, AWAKE), dict.fromkeys(self.own, AWAKE)
        return self if self.ended else Progress(self.watermark, False, False, heard, own)

    def after_the_end(self) -> Progress:
        return Progress(self.watermark, False, True, dict.fromkeys(self.heard, OVER), dict.fromkeys(self.own, OVER))


UNHEARD = Progress()  # nothing is known yet: it is waited for


def combined(parts: Iterable[Progress], before: int = NEVER) -> Progress:
    """``before`` is the former watermark. The watermark is the lowest of the parts that send, or the highest of all if
    none does. An idle part that has heard something else of a source than another counts as sending: it will hear."""
    parts = tuple(parts)
    heard, disputed = _agreed(parts)
    lowest, highest, idle, ended = FOREVER, before, True, True
    for part in parts:
        highest = max(highest, part.watermark)
        if not part.ended:
            ended = False
            if not part.idle or (disputed and not disputed.isdisjoint(part.heard)):
                idle = False
                lowest = min(lowest, part.watermark)
    own = _pooled(parts)
    if ended:
        return Progress(highest, False, True, heard, own)
    return Progress(highest if idle else max(before, lowest), idle, False, heard, own)


def _agreed(parts: Iterable[Progress]) -> tuple[Heard, set[str]]:
    heard: Heard = NOTHING_HEARD
    disputed: set[str] = set()
    for part in parts:
        if part.heard is heard or part.heard == heard:  # almost always, and there may be thousands of parts
            continue
        disputed.update(source for source in heard.keys() & part.heard.keys() if heard[source] != part.heard[source])
        heard = {**heard, **part.heard} if heard else part.heard
    return ({**heard, **dict.fromkeys(disputed, AWAKE)} if disputed else heard), disputed


def _pooled(parts: Iterable[Progress]) -> Heard:
    """What is known of sources whose partitions the parts share out: one is idle if all that goes on of it is."""
    own: Heard = NOTHING_HEARD
    for part in parts:
        if part.own is own or part.own == own:
            continue
        both = ((source, own.get(source, OVER), stood) for source, stood in part.own.items())
        own = {**own, **{source: _of_both(one, other) for source, one, other in both}}
    return own


def _of_both(one: int | None, other: int | None) -> int | None:
    if one is AWAKE or other is AWAKE:
        return AWAKE
    return min(one, other) if OVER in (one, other) else max(one, other)


NOTHING = combined(())  # the progress of an empty set of parts: it has ended


class PartitionCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``total_tasks`` and ``tasks``: how many tasks each writing stage has, and what each task has said."""

    stream_id: str
    partition: int
    progress: Progress
    total_tasks: dict[str, int]
    tasks: dict[str, Progress]
    shards: dict[str, Progress] = {}


class TimesCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All keys are the stored names. ``ended_streams`` are the intermediate streams whose end this task has written."""

    format: int = TIMES_FORMAT
    watermark: int
    partitions: list[PartitionCheckpoint]
    streams: dict[str, int] = {}
    operators: dict[str, int] = {}
    ended_operators: list[str] = []
    ended_streams: list[str] = []


class _Format(msgspec.Struct, frozen=True):
    format: int = 1


def decode_times(data: bytes | msgspec.Raw) -> TimesCheckpoint:
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found == TIMES_FORMAT:
            return _DECODER.decode(data)
    except UNREADABLE as error:
        raise ProtocolError(f"the watermarks in a commit record can't be read: {error}") from error
    raise ProtocolError(
        f"the watermarks in a commit record have format {found}; this version of Headrace reads {TIMES_FORMAT}",
        hint="run the version of Headrace that wrote the record",
    )


_DECODER = msgspec.json.Decoder(TimesCheckpoint)


class PartitionTime:
    """A stage may get more tasks while its readers run, so the highest number of writers counts that is stated."""

    __slots__ = ("_counts", "_holding", "_saved_shards", "_shards", "_source", "_tasks", "progress", "ssp")

    def __init__(self, ssp: SSP, writers: Mapping[str, int] | None = None, source: str | None = None) -> None:
        self.ssp = ssp
        self._source = source
        self.progress = UNHEARD
        self._counts = dict(writers or {})
        self._tasks: dict[str, dict[str, Progress]] = {stage: {} for stage in self._counts}  # what each has said
        self._shards: dict[str, Progress] | None = None
        self._saved_shards: Mapping[str, Progress] = {}  # of the last commit, until the present ones are known
        self._holding: frozenset[str] = frozenset()

    @property
    def told(self) -> Progress:
        now = self.progress
        if self._source is None:
            return now
        stood = OVER if now.ended else now.watermark if now.idle else AWAKE
        return now._replace(own={self._source: stood})

    def advance(self, timestamp: int, shard: str = "") -> None:
        before = self.progress if self._shards is None else self._shards[shard]
        if not before.ended and (before.idle or timestamp > before.watermark):
            self._set(before.woken()._replace(watermark=max(before.watermark, timestamp)), shard)

    def wake(self, shard: str = "") -> None:
        self.advance(NEVER, shard)

    def fall_idle(self, shard: str = "") -> None:
        before = self.progress if self._shards is None else self._shards[shard]
        if not before.ended:
            self._set(before._replace(idle=True), shard)

    def _set(self, progress: Progress, shard: str) -> None:
        if self._shards is None:
            self.progress = progress
        else:
            self._shards[shard] = progress
            self.progress = combined(self._shards.values(), self.progress.watermark)

    def has_shards(self, shards: Collection[str], holding: Collection[str] = ()) -> None:
        """A new shard begins at the slot's watermark. Those that are ``holding`` wait for others: never idle."""
        known, new = self._shards or self._saved_shards, Progress(self.progress.watermark)
        self._saved_shards = {}
        self._holding = frozenset(holding)
        self._shards = {shard: known.get(shard, new) for shard in shards}
        for shard in self._holding & self._shards.keys():
            self._shards[shard] = self._shards[shard]._replace(idle=False)
        if self._shards:
            self.progress = combined(self._shards.values(), self.progress.watermark)
        else:
            self.progress = self.progress._replace(idle=True)

    @property
    def holds(self) -> bool:
        return bool(self._holding)

    @property
    def sending(self) -> list[str]:
        """What may fall idle: the shards of a slot that are being read; of other partitions, the whole of them."""
        if self._shards is None:
            return [] if self.progress.idle or self.progress.ended else [""]
        return [shard for shard, time in self._shards.items() if not time.idle and shard not in self._holding]

    def end(self) -> None:
        self.progress = self.progress.after_the_end()

    def on_watermark(
        self,
        task: str,
        task_count: int,
        timestamp: int,
        *,
        idle: bool = False,
        heard: Heard = NOTHING_HEARD,
        own: Heard = NOTHING_HEARD,
    ) -> None:
        said = self._said(task, task_count)
        before = said.get(task)
        if before is None:
            said[task] = Progress(timestamp, idle, False, self._same(heard), own)
        elif before.ended:
            return
        else:
            said[task] = now = Progress(max(before.watermark, timestamp), idle, False, self._same(heard), own)
            # Most watermarks come from tasks that don't hold back the minimum: then it stays as it is.
            same = now[1:] == before[1:]
            if same and not self.progress.idle and before.watermark > self.progress.watermark:
                return
        self._reconcile()

    def _same(self, heard: Heard) -> Heard:
        return self.progress.heard if heard == self.progress.heard else heard

    def on_restart(self, task: str, task_count: int) -> None:
        said = self._said(task, task_count)
        if task in said:
            said[task] = said[task].woken()
            self._reconcile()

    def on_end_of_stream(self, task: str, task_count: int) -> None:
        said = self._said(task, task_count)
        said[task] = said.get(task, UNHEARD).after_the_end()
        self._reconcile()

    def missing(self) -> str:
        parts = [f"any task of stage {stage}" for stage, said in sorted(self._tasks.items()) if not said]
        for stage, said in sorted(self._tasks.items()):
            count = self._counts[stage]
            if 0 < len(said) < count:
                parts.append(f"{count - len(said)} of {count} tasks of stage {stage}")
        return ", ".join(parts)

    def _said(self, task: str, task_count: int) -> dict[str, Progress]:
        stage = TaskName.parse(task).stage
        said = self._tasks.get(stage)
        if said is None:
            raise ProtocolError(
                f"{self.ssp}: control message of task {task!r}, but by this app's plan the stream is written by "
                f"{', '.join(sorted(self._counts)) or 'no stage'}",
                hint="another version of the app writes it: deploy the stage that reads it again, with the present "
                "version of the app. If another app writes it, give the intermediate stream of one of them another id",
            )
        if task_count > self._counts[stage]:
            self._counts[stage] = task_count  # the stage has grown; the new tasks are unheard
            self._reconcile()
        count = self._counts[stage]
        if task not in said and len(said) == count:
            raise ProtocolError(
                f"{self.ssp}: {len(said) + 1} tasks of stage {stage!r} have reported "
                f"({', '.join(sorted([*said, task]))}), but it says to have {count}",
                hint="two versions of the stage are running; stop one of them",
            )
        return said

    def _reconcile(self) -> None:
        stages = [self._of_stage(said.values(), self._counts[stage]) for stage, said in self._tasks.items()]
        self.progress = combined(stages, self.progress.watermark)

    @staticmethod
    def _of_stage(said: Collection[Progress], count: int) -> Progress:
        """The progress of a whole stage: to its readers, what its tasks share out is what they have all heard."""
        whole = combined(said if len(said) == count else (*said, UNHEARD))
        if not whole.own:
            return whole
        heard, disputed = _agreed((whole, Progress(heard=whole.own)))
        return whole._replace(heard=heard, own=NOTHING_HEARD, idle=whole.idle and not disputed)

    def save(self, stream_id: str) -> PartitionCheckpoint:
        return PartitionCheckpoint(
            stream_id=stream_id,
            partition=self.ssp.partition,
            progress=self.progress,
            total_tasks=dict(self._counts),
            tasks={task: progress for said in self._tasks.values() for task, progress in said.items()},
            shards=dict(self._saved_shards if self._shards is None else self._shards),
        )

    def load(self, saved: PartitionCheckpoint) -> None:
        """The plan may have changed: the watermark waits for tasks that are new since then. A source that was idle may
        have messages by now, so it isn't idle until it has been silent for its timeout again."""
        if not self._counts:
            self.progress = saved.progress.woken()
            self._saved_shards = {shard: progress.woken() for shard, progress in saved.shards.items()}
            return
        self.progress = saved.progress
        for task, progress in saved.tasks.items():
            name = TaskName.parse(task)
            if name.number < self._counts.get(name.stage, 0):
                self._tasks[name.stage][task] = progress
        if saved.total_tasks != self._counts:
            self._reconcile()


class InputTimes:
    """The event time of a task's inputs: a stream's is that of the partitions that the task reads."""

    def __init__(self, partitions: Iterable[tuple[str, PartitionTime]]) -> None:
        self.partitions: dict[SSP, PartitionTime] = {}
        self._streams: dict[str, list[PartitionTime]] = {}
        for stream, partition in partitions:
            self.partitions[partition.ssp] = partition
            self._streams.setdefault(stream, []).append(partition)
        self._told: list[Progress] | None = None

    def __getitem__(self, ssp: SSP) -> PartitionTime:
        return self.partitions[ssp]

    def wake(self, ssp: SSP, shard: str = "") -> None:
        """That it wakes is news, even if it is idle again by the next turn: an operator may keep something since."""
        partition = self.partitions[ssp]
        if partition.progress.idle:
            self._told = None
        partition.wake(shard)

    @property
    def ended(self) -> bool:
        return all(partition.progress.ended for partition in self.partitions.values())

    def news(self) -> dict[str, Progress] | None:
        """The progress of each stream, by id; None if nothing has changed since the last call."""
        now = [partition.progress for partition in self.partitions.values()]
        if now == self._told:
            return None
        self._told = now
        return self.streams()

    def streams(self) -> dict[str, Progress]:
        return {
            stream: partitions[0].told if len(partitions) == 1 else combined([p.told for p in partitions])
            for stream, partitions in self._streams.items()
        }

    def save(self, name: Callable[[SSP], str]) -> list[PartitionCheckpoint]:
        return [self.partitions[ssp].save(name(ssp)) for ssp in sorted(self.partitions)]

    def load(self, saved: Iterable[PartitionCheckpoint], name: Callable[[SSP], str]) -> None:
        by_name = {(name(ssp), ssp.partition): partition for ssp, partition in self.partitions.items()}
        for one in saved:
            partition = by_name.get((one.stream_id, one.partition))
            if partition is not None:
                partition.load(one)
